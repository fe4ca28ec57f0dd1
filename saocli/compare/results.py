"""What a comparison is made of: finished runs, read back from their directories."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

BASE = "base"


@dataclass(frozen=True, kw_only=True, slots=True)
class ScoredRollout:
    """One attempt that was graded, in the order of its run."""

    index: int  # 0-based, of its run
    problem: str
    task: str  # what the table counts by: the problem's family, or the problem itself
    attempt: int  # 1-based, of its problem
    score: float
    tokens: int
    truncated: bool
    state: str  # trained | dropped | recorded | queued
    reason: str | None  # why it was not trained
    step: int | None  # that trained it
    at_s: float  # seconds since the run's first attempt, evaluations not counted


@dataclass(frozen=True, kw_only=True, slots=True)
class HeldOut:
    """One evaluation on fresh problems."""

    step: int
    temperature: float
    samples: int
    passed: float  # sum of scores

    @property
    def rate(self) -> float:
        return self.passed / self.samples


@dataclass(frozen=True, kw_only=True, slots=True)
class RunResult:
    """One finished run of one arm and seed."""

    seed: int
    path: str  # of the run directory, relative to the comparison's
    rollouts: tuple[ScoredRollout, ...]
    steps: tuple[Mapping[str, Any], ...]  # the lines of metrics.jsonl
    held_out: tuple[HeldOut, ...]
    dropped: Mapping[str, int]  # reports that did not train, by reason
    start_s: float  # until the service was healthy
    play_s: float  # from the first attempt to the last commit, evaluations not counted
    eval_s: float
    base_digest: str  # of the weights it started from

    @property
    def rewards(self) -> list[float]:
        return [rollout.score for rollout in self.rollouts]


@dataclass(frozen=True, kw_only=True, slots=True)
class ArmResult:
    """An arm under its label (`sao`, or `sao#2` where an arm is there twice), one run per seed."""

    label: str
    arm: str
    settings: tuple[str, ...]  # the overrides that make the runs this arm's
    runs: tuple[RunResult, ...]

    @property
    def trains(self) -> bool:
        return self.arm != BASE


@dataclass(frozen=True, kw_only=True, slots=True)
class Tuning:
    """What was tried for an arm before its runs, all on one seed that no run of the comparison has."""

    label: str
    seed: int
    tried: tuple[tuple[str, float], ...]  # overrides -> mean reward
    chosen: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """Everything the report says is computed from this."""

    conf: str
    description: str
    rollouts: int  # per arm and seed
    seeds: tuple[int, ...]
    arms: tuple[ArmResult, ...]  # the untrained base first, then as asked for
    tuning: tuple[Tuning, ...] = ()

    @property
    def base(self) -> ArmResult:
        return self.arms[0]

    @property
    def trained(self) -> tuple[ArmResult, ...]:
        return self.arms[1:]
