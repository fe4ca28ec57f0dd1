"""Where each value of a resolved run came from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from omegaconf import MISSING

IN_CODE = "default in code"


@dataclass(frozen=True)
class Layer:
    """One thing that was merged into the run: a file, a profile's override, a user's override."""

    source: str
    values: Mapping[str, Any]


def at(key: str, values: Any) -> dict[str, Any]:
    """`values` placed below a dotted key: at("a.b", 1) is {"a": {"b": 1}}; the empty key is the root."""
    for part in reversed(key.split(".") if key else []):
        values = {part: values}
    return dict(values)


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings as dotted key → leaf; lists and empty mappings are leaves."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        key = f"{prefix}{name}"
        flat |= flatten(value, f"{key}.") if isinstance(value, Mapping) and value else {key: value}
    return flat


def trace(layers: Sequence[Layer], resolved: Mapping[str, Any]) -> dict[str, str]:
    """Dotted key of `resolved` → the source of the last layer that set it, as merging in this order does."""
    given = ((layer.source, flatten(layer.values)) for layer in layers)
    setters = {key: source for source, values in given for key, value in values.items() if value != MISSING}
    return {key: setters.get(key, IN_CODE) for key in flatten(resolved)}
