"""Prometheus' text format, version 0.0.4."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
Labels = Mapping[str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Family:
    """One metric: its name (with its unit), what it is, and its samples."""

    name: str
    kind: str  # counter | gauge
    help: str
    samples: Iterable[tuple[Labels, float]]


def exposition(families: Iterable[Family]) -> str:
    """The families as a scrape reads them; those without samples are left out."""
    lines = []
    for family in families:
        samples = [f"{family.name}{_labels(labels)} {_number(value)}" for labels, value in family.samples]
        if samples:
            lines += [f"# HELP {family.name} {family.help}", f"# TYPE {family.name} {family.kind}", *samples]
    return "".join(f"{line}\n" for line in lines)


def _labels(labels: Labels) -> str:
    quoted = (f'{name}="{_escaped(value)}"' for name, value in labels.items())
    return "{" + ",".join(quoted) + "}" if labels else ""


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _number(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return repr(int(value)) if float(value).is_integer() and abs(value) < 2**53 else repr(float(value))
