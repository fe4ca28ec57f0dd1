"""The dotted keys a run has, and the one that a misspelled key was probably meant to be."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator
from difflib import SequenceMatcher
from typing import get_origin, get_type_hints

MIN_LIKENESS = 0.6


@dataclasses.dataclass(frozen=True)
class Keys:
    """Every key of a schema: sections and values by name, and the dicts below which any key goes."""

    names: frozenset[str]
    free: frozenset[str]

    def __contains__(self, key: str) -> bool:
        return key in self.names or any(key.startswith(f"{prefix}.") for prefix in self.free)


def _walk(schema: type, prefix: str) -> Iterator[tuple[str, bool]]:
    hints = get_type_hints(schema)
    for field in dataclasses.fields(schema):
        key, hint = prefix + field.name, hints[field.name]
        yield key, get_origin(hint) is dict
        if dataclasses.is_dataclass(hint) and isinstance(hint, type):
            yield from _walk(hint, f"{key}.")


def keys_of(schema: type) -> Keys:
    """The keys of a dataclass of dataclasses."""
    found = list(_walk(schema, ""))
    return Keys(names=frozenset(key for key, _ in found), free=frozenset(key for key, is_dict in found if is_dict))


def nearest(word: str, candidates: Collection[str]) -> str | None:
    """The candidate most like `word`, by the whole dotted key or by its last part; None when nothing is close."""

    def likeness(candidate: str) -> tuple[float, float]:
        whole = SequenceMatcher(None, word, candidate).ratio()
        last = SequenceMatcher(None, word.rpartition(".")[2], candidate.rpartition(".")[2]).ratio()
        return max(whole, last), whole

    best = max(sorted(candidates), key=likeness, default=None)
    return best if best is not None and likeness(best)[0] >= MIN_LIKENESS else None
