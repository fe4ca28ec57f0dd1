"""Enums that a conf writes by their value: `kind: cpu`, not `kind: CPU`."""

from __future__ import annotations

from enum import EnumType, StrEnum
from typing import Any


class _ByValue(EnumType):
    """OmegaConf looks a string up with `Enum[name]`; this lets the value be found there too."""

    def __getitem__(cls, name: str) -> Any:
        return cls._value2member_map_.get(name) or super().__getitem__(name)


class Choice(StrEnum, metaclass=_ByValue):
    """Base of every choice in the config."""
