"""Stop strings in text that arrives piece by piece."""

from __future__ import annotations

from collections.abc import Sequence


class StopTrimmer:
    """Passes text on until a stop string is complete, holding back what might be the start of one."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = stops
        self._held = ""
        self.matched = False  # a stop string was found; nothing more comes out

    def push(self, text: str) -> str:
        """The part of the text so far that is certainly before any stop string, and was not given out yet."""
        if self.matched or not text:
            return ""
        self._held += text
        found = [at for stop in self._stops if (at := self._held.find(stop)) >= 0]
        if found:
            self.matched = True
            return self._take(min(found))
        return self._take(len(self._held) - self._undecided())

    def flush(self) -> str:
        """What was held back, once no more text can come."""
        return "" if self.matched else self._take(len(self._held))

    def _take(self, length: int) -> str:
        out, self._held = self._held[:length], self._held[length:]
        return out

    def _undecided(self) -> int:
        """Length of the longest end of the held text that a stop string starts with."""
        longest = max((len(stop) for stop in self._stops), default=1) - 1
        for size in range(min(longest, len(self._held)), 0, -1):
            if any(stop.startswith(self._held[-size:]) for stop in self._stops):
                return size
        return 0
