"""Stop strings, matched on the decoded text of the response so far."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

# Decoding may treat a window's first tokens specially (leading space, half of a character): they precede any match.
_MARGIN = 8


class Decoder(Protocol):
    """The part of a transformers tokenizer that is needed here."""

    all_special_ids: list[int]

    def decode(self, token_ids: Sequence[int], **options: bool) -> str: ...


class StopStrings:
    """Watches one response for the first of several strings, within a token or across tokens.

    Only a tail is decoded per token: as many tokens as the longest string has bytes, as a token that shows has one.
    """

    def __init__(self, strings: Collection[str], decoder: Decoder) -> None:
        self._strings = tuple(strings)
        self._decoder = decoder
        self._hidden = frozenset(decoder.all_special_ids)
        self._window = max(len(string.encode()) for string in self._strings) + _MARGIN
        self._tail: list[int] = []

    def push(self, token: int) -> str | None:
        """Take one more token; the stop string that the text contains now (the earliest in the text), if any."""
        if token in self._hidden:
            return None
        self._tail = [*self._tail[-self._window + 1 :], token]
        text = self._decoder.decode(self._tail, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        found = [(place, string) for string in self._strings if (place := text.find(string)) >= 0]
        return min(found, key=lambda hit: hit[0])[1] if found else None
