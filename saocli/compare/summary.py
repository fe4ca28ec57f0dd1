"""The numbers of an arm, over all its seeds or of one: what the table shows and the report keeps."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from saocli.compare.results import ArmResult, Comparison, RunResult, ScoredRollout
from saocli.compare.stats import Interval, mean_interval
from saocli.types import Operation


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskScore:
    """An arm's scores on one task."""

    task: str
    rollouts: int
    total: float  # sum of scores
    counted: bool  # every score of this task, in every arm, is 0 or 1

    @property
    def mean(self) -> float | None:
        return self.total / self.rollouts if self.rollouts else None


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """Mean score on fresh problems, before training and after; None where it was not measured."""

    before: float | None
    after: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Timing:
    """Wall-clock, summed over seeds; the rates are per time of play."""

    start_s: float  # until the service was healthy
    play_s: float  # attempts, their grading and training; neither start nor evaluation
    eval_s: float
    rollouts_per_min: float | None
    tokens_per_s: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Summary:
    """One arm in numbers; None where a number is undefined."""

    label: str
    rollouts: int  # that were scored
    commits: int | None  # steps that trained something; None for an arm that never trains
    noops: int | None  # steps that trained nothing
    reward: Interval | None  # mean score of all rollouts
    tasks: tuple[TaskScore, ...]
    sampled: Change  # held out, at the evaluation's temperature
    greedy: Change  # held out, at temperature 0
    policy_lag: float | None  # mean over steps
    clip_fraction: float | None  # mean over steps, each weighted by its response tokens
    explained_variance: float | None  # rolling, the last that was defined, mean over seeds
    tokens: int  # of the scored rollouts' responses
    dropped: int | None  # reports that did not train
    dropped_share: float | None  # of the scored rollouts
    timing: Timing


def summarize(comparison: Comparison) -> list[Summary]:
    """Every arm over all its seeds, the base first."""
    counted = _counted_tasks(comparison)
    return [_summary(arm, comparison.base, counted) for arm in comparison.arms]


def summarize_runs(comparison: Comparison, arm: ArmResult) -> list[Summary]:
    """The same numbers of each of an arm's runs alone, seed by seed."""
    counted = _counted_tasks(comparison)
    return [
        _summary(replace(arm, label=f"{arm.label} · seed {run.seed}", runs=(run,)), comparison.base, counted)
        for run in arm.runs
    ]


def _summary(arm: ArmResult, base: ArmResult, counted: dict[str, bool]) -> Summary:
    rollouts = [rollout for run in arm.runs for rollout in run.rollouts]
    steps = [step for run in arm.runs for step in run.steps]
    noops = sum(step["operation"] == Operation.NOOP for step in steps)
    commits = sum(step["operation"] == Operation.TRAINING for step in steps)
    dropped = sum(sum(run.dropped.values()) for run in arm.runs) if arm.trains else None
    tokens = sum(rollout.tokens for rollout in rollouts)
    return Summary(
        label=arm.label,
        rollouts=len(rollouts),
        commits=commits if arm.trains else None,
        noops=noops if arm.trains else None,
        reward=mean_interval([rollout.score for rollout in rollouts]) if rollouts else None,
        tasks=tuple(_task_score(task, rollouts, is_counted) for task, is_counted in counted.items()),
        sampled=_change(arm, base, greedy=False),
        greedy=_change(arm, base, greedy=True),
        policy_lag=_mean(step["sao/policy_lag_mean"] for step in steps),
        clip_fraction=_weighted(steps, "pg_clipfrac"),
        explained_variance=_mean(_last(run.steps, "critic/explained_variance_rolling") for run in arm.runs),
        tokens=tokens,
        dropped=dropped,
        dropped_share=_rate(dropped, len(rollouts)) if dropped is not None else None,
        timing=_timing(arm.runs, len(rollouts), tokens),
    )


def _counted_tasks(comparison: Comparison) -> dict[str, bool]:
    """Tasks in the order they first came up, base first, and whether all of a task's scores are 0 or 1."""
    counted: dict[str, bool] = {}
    for arm in comparison.arms:
        for run in arm.runs:
            for rollout in run.rollouts:
                counted[rollout.task] = counted.get(rollout.task, True) and rollout.score in {0.0, 1.0}
    return counted


def _task_score(task: str, rollouts: Sequence[ScoredRollout], counted: bool) -> TaskScore:
    scores = [rollout.score for rollout in rollouts if rollout.task == task]
    return TaskScore(task=task, rollouts=len(scores), total=math.fsum(scores), counted=counted)


def _change(arm: ArmResult, base: ArmResult, *, greedy: bool) -> Change:
    """Mean over seeds. An arm without an evaluation of its own before training has the base's of the same seed:
    the same weights on the same problems."""
    first = {run.seed: _held_out(run, greedy=greedy)[0] for run in base.runs}
    pairs = [_held_out(run, greedy=greedy) for run in arm.runs]
    befores = [
        first.get(run.seed) if before is None else before for run, (before, _) in zip(arm.runs, pairs, strict=True)
    ]
    return Change(before=_mean(befores), after=_mean(after for _, after in pairs))


def _held_out(run: RunResult, *, greedy: bool) -> tuple[float | None, float | None]:
    """Mean scores before the first step and after the last evaluated one."""
    rates = {held.step: held.rate for held in run.held_out if (held.temperature == 0) == greedy and held.samples}
    last = max(rates, default=0)
    return rates.get(0), rates[last] if last > 0 else None


def _timing(runs: Sequence[RunResult], rollouts: int, tokens: int) -> Timing:
    play_s = math.fsum(run.play_s for run in runs)
    return Timing(
        start_s=math.fsum(run.start_s for run in runs),
        play_s=play_s,
        eval_s=math.fsum(run.eval_s for run in runs),
        rollouts_per_min=_rate(60.0 * rollouts, play_s),
        tokens_per_s=_rate(tokens, play_s),
    )


def _weighted(steps: Sequence[Any], name: str) -> float | None:
    """Mean of a metric over the steps that have it, weighted by their response tokens."""
    known = [step for step in steps if step[name] is not None]
    return _rate(math.fsum(step[name] * step["tokens"] for step in known), sum(step["tokens"] for step in known))


def _last(steps: Sequence[Any], name: str) -> float | None:
    return next((step[name] for step in reversed(steps) if step[name] is not None), None)


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known else None


def _rate(amount: float, per: float) -> float | None:
    return amount / per if per > 0 else None
