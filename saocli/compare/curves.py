"""Mean reward along a comparison's way: an arm's mean over seeds, and what lies between its lowest and highest seed."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate

from saocli.compare.results import ArmResult, Comparison, RunResult

# Points of a curve over time, where runs share no moments.
MOMENTS = 200


class Axis(StrEnum):
    """What a curve runs along; the value names it with its unit."""

    ROLLOUTS = "scored rollouts"
    STEPS = "optimizer steps"
    SECONDS = "seconds of play"


@dataclass(frozen=True, kw_only=True, slots=True)
class Curve:
    """One arm's line; the tuples are aligned to `x`, which rises."""

    label: str
    x: tuple[float, ...]
    mean: tuple[float, ...]  # over seeds
    low: tuple[float, ...]  # of the lowest seed
    high: tuple[float, ...]  # of the highest seed


@dataclass(frozen=True, kw_only=True, slots=True)
class _Track:
    """One run: `y[i]` holds from `x[i]` on."""

    x: list[float]
    y: list[float]

    def at(self, x: float) -> float:
        return self.y[bisect_right(self.x, x) - 1]


def reward_curves(comparison: Comparison, axis: Axis, *, window: int | None = None) -> list[Curve]:
    """Each arm's mean reward so far against `axis`, base first; with `window`, of the last `window` rollouts alone.

    A rollout counts from the step that trained it; one that no step trained counts with its predecessor. A curve starts
    once every run has a value and ends where the first run does. Along steps and seconds, which mean nothing to a model
    that is never trained, the base is a level: its mean reward over everything.
    """
    trained = [curve for arm in comparison.trained if (curve := _curve(arm, axis, window)) is not None]
    if axis is Axis.ROLLOUTS:
        base = _curve(comparison.base, axis, window)
    else:
        base = _level(comparison.base, max((curve.x[-1] for curve in trained), default=0.0))
    return [*([base] if base else []), *trained]


def _level(arm: ArmResult, end: float) -> Curve | None:
    rewards = [reward for run in arm.runs for reward in run.rewards]
    if not rewards or end <= 0:
        return None
    level = (sum(rewards) / len(rewards),) * 2
    return Curve(label=arm.label, x=(0.0, end), mean=level, low=level, high=level)


def _curve(arm: ArmResult, axis: Axis, window: int | None) -> Curve | None:
    tracks = [_track(run, axis, window) for run in arm.runs]
    if not all(track.x for track in tracks):
        return None
    start, end = max(track.x[0] for track in tracks), min(track.x[-1] for track in tracks)
    if end < start or end <= 0:
        return None
    grid = _grid(start, end, axis)
    values = [[track.at(x) for track in tracks] for x in grid]
    return Curve(
        label=arm.label,
        x=tuple(grid),
        mean=tuple(sum(row) / len(row) for row in values),
        low=tuple(min(row) for row in values),
        high=tuple(max(row) for row in values),
    )


def _grid(start: float, end: float, axis: Axis) -> list[float]:
    if axis is not Axis.SECONDS:
        return [float(x) for x in range(int(start), int(end) + 1)]
    return [start + (end - start) * index / (MOMENTS - 1) for index in range(MOMENTS - 1)] + [end]


def _track(run: RunResult, axis: Axis, window: int | None) -> _Track:
    means = trailing_means(run.rewards, window or len(run.rollouts))
    match axis:
        case Axis.ROLLOUTS:
            x = [float(count) for count in range(1, len(means) + 1)]
        case Axis.STEPS:
            x = list(accumulate((float(rollout.step or 0) for rollout in run.rollouts), max))
        case Axis.SECONDS:
            x = list(accumulate((rollout.at_s for rollout in run.rollouts), max))
    first = window - 1 if window else 0
    return _Track(x=x[first:], y=means[first:])


def trailing_means(scores: Sequence[float], window: int) -> list[float]:
    """At each score, the mean of the last `window` scores, itself included; of fewer at the beginning."""
    sums = [0.0, *accumulate(scores)]
    return [(sums[end] - sums[max(0, end - window)]) / min(end, window) for end in range(1, len(sums))]


def focus(curves: Sequence[Curve], *, bands: bool) -> tuple[float, float]:
    """Lowest and highest value to show: of everything but the first quarter, where a mean of few rollouts swings."""
    shown = [
        value
        for curve in curves
        for x, mean, low, high in zip(curve.x, curve.mean, curve.low, curve.high, strict=True)
        if x >= curve.x[-1] / 4
        for value in ((low, high) if bands else (mean,))
    ]
    low, high = min(shown), max(shown)
    margin = max(0.05 * (high - low), 0.02)
    return low - margin, high + margin
