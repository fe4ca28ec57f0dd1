"""How old a sample may be: weight updates between what produced it and what serves when its step starts."""

from __future__ import annotations

from collections.abc import Sequence

from saocli.processors.reasons import Reason, Rejection

Position = tuple[int, int]  # (lineage, step) of a weight version


def judge_staleness(
    produced: Sequence[Position | None], serving: Position | None, max_staleness: int
) -> tuple[int, ...] | Rejection:
    """The lag of each producing version, in steps and in their order; or why the sample may not train.

    A version that no release knows (None), of another lineage, or newer than what serves has no lag: `lineage`. A
    sample that spans several versions is as old as its oldest: `stale` when that lag exceeds `max_staleness`.
    """
    if serving is None or not produced:
        return Rejection(Reason.LINEAGE)
    lags = []
    for position in produced:
        if position is None or position[0] != serving[0] or position[1] > serving[1]:
            return Rejection(Reason.LINEAGE)
        lags.append(serving[1] - position[1])
    return Rejection(Reason.STALE) if max(lags) > max_staleness else tuple(lags)
