"""Seconds of play, with the pauses left out."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


class PlayClock:
    """Runs from `start` on, and stands still while `paused`."""

    def __init__(self) -> None:
        self._origin = time.monotonic()
        self._stopped_at: float | None = None

    def start(self, at: float = 0.0) -> None:
        """Count from `at`."""
        self._origin = time.monotonic() - at

    def seconds(self) -> float:
        return (time.monotonic() if self._stopped_at is None else self._stopped_at) - self._origin

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Stand still for the duration."""
        self._stopped_at = time.monotonic()
        try:
            yield
        finally:
            self._origin += time.monotonic() - self._stopped_at
            self._stopped_at = None
