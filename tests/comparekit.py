"""Comparisons made up for tests: their scores are given, everything else follows from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from saocli.compare.results import ArmResult, Comparison, HeldOut, RunResult, ScoredRollout, Tuning

TASKS = ("add1", "larger", "word")


def rollouts(
    scores: Sequence[float], *, tasks: Sequence[str] = TASKS, trained: bool = True, seconds: float = 2.0
) -> tuple[ScoredRollout, ...]:
    """One rollout per score, the tasks in turn, a step each where `trained`, ten tokens and `seconds` each."""
    return tuple(
        ScoredRollout(
            index=index,
            problem=f"{tasks[index % len(tasks)]}-{index}",
            task=tasks[index % len(tasks)],
            attempt=1,
            score=score,
            tokens=10,
            truncated=False,
            state="trained" if trained else "recorded",
            reason=None if trained else "no training",
            step=index + 1 if trained else None,
            at_s=(index + 1) * seconds,
        )
        for index, score in enumerate(scores)
    )


def step(number: int, **metrics: Any) -> dict[str, Any]:
    """A line of metrics.jsonl with what a comparison reads; undefined unless given."""
    return {
        "step": number,
        "operation": "training",
        "tokens": 10,
        "pg_clipfrac": None,
        "critic/explained_variance_rolling": None,
        "sao/policy_lag_mean": None,
    } | metrics


def run(seed: int, scores: Sequence[float], *, label: str = "sao", trained: bool = True, **fields: Any) -> RunResult:
    """A run whose every rollout made a step; an untrained one has none, and is evaluated before."""
    defaults: dict[str, Any] = {
        "seed": seed,
        "path": f"runs/{label}-seed{seed}",
        "rollouts": rollouts(scores, trained=trained),
        "steps": tuple(step(number) for number in range(1, len(scores) + 1)) if trained else (),
        "held_out": () if trained else (HeldOut(step=0, temperature=1.0, samples=100, passed=40.0),),
        "dropped": {},
        "start_s": 5.0,
        "play_s": 2.0 * len(scores),
        "eval_s": 3.0,
        "base_digest": "0" * 64,
    }
    return RunResult(**(defaults | fields))


def arm(label: str, scores: Mapping[int, Sequence[float]], **fields: Any) -> ArmResult:
    """An arm with a run per seed; `base` is not trained."""
    name = label.partition("#")[0]
    trained = name != "base"
    return ArmResult(
        label=label,
        arm=name,
        settings=(f"arm.name={name}",),
        runs=tuple(run(seed, values, label=label, trained=trained, **fields) for seed, values in scores.items()),
    )


def comparison(*arms: ArmResult, tuning: Sequence[Tuning] = ()) -> Comparison:
    """The arms as given, the base first."""
    return Comparison(
        conf="compare",
        description="Arms side by side",
        rollouts=max(len(one.rollouts) for each in arms for one in each.runs),
        seeds=tuple(one.seed for one in arms[0].runs),
        arms=arms,
        tuning=tuple(tuning),
    )
