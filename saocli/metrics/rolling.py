"""Windows over the last rollouts, so that a batch of one still shows a trend."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from saocli.algo.pooled_variance import pooled_explained_variance
from saocli.types import RolloutMoments


class Rolling:
    """Scores and critic moments of the last `size` rollouts."""

    def __init__(self, size: int) -> None:
        self._scores: deque[float] = deque(maxlen=size)
        self._moments: deque[RolloutMoments] = deque(maxlen=size)

    @classmethod
    def restored(cls, size: int, records: Iterable[Mapping[str, Any]]) -> Rolling:
        """The window as it was after these step records (lines of metrics.jsonl, oldest first)."""
        rolling = cls(size)
        for record in records:
            rolling.add(record["scores"], [RolloutMoments(**moments) for moments in record["moments"]])
        return rolling

    def add(self, scores: Sequence[float], moments: Sequence[RolloutMoments]) -> None:
        """Take in one batch's rollouts; `moments` is empty for arms without a critic."""
        self._scores.extend(scores)
        self._moments.extend(moments)

    def reward(self) -> float | None:
        """Mean score over the window."""
        return sum(self._scores) / len(self._scores) if self._scores else None

    def explained_variance(self) -> float | None:
        """Pooled over the window's action tokens."""
        return pooled_explained_variance(self._moments)
