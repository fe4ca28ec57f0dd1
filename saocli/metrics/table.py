"""The per-step row that a person follows: fixed columns, units in the head, `–` where a value is undefined."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rich.text import Text

from saocli.types import DROPPED

Record = Mapping[str, Any]  # a step record, as in metrics.jsonl

UNDEFINED = "–"
GAP = "  "


@dataclass(frozen=True, kw_only=True, slots=True)
class Column:
    """One column: never wider than `width`, whatever the value."""

    title: str
    width: int
    cell: Callable[[Record], str]
    left: bool = False
    style: str = ""

    def fill(self, text: str) -> str:
        return f"{text:<{self.width}}" if self.left else f"{text:>{self.width}}"


def number(value: float | None, width: int, decimals: int = 0) -> str:
    """`value` in at most `width` characters: decimals give way first, then thousands (k, M, G), then ####."""
    if value is None or not math.isfinite(value):
        return UNDEFINED
    plain = [f"{value:.{places}f}" for places in range(decimals, -1, -1)]
    thousands = [f"{value / 1000**power:.0f}{suffix}" for power, suffix in enumerate("kMG", start=1)]
    return next((text for text in plain + thousands if len(text) <= width), "#" * width)


def note(record: Record) -> str:
    """What was special about the step, '' for a plain one."""
    parts = []
    if (back := record.get("rollback/to_step")) is not None:
        parts.append(f"rolled back to step {back:.0f}")
    if record["noop_reason"] is not None:
        parts.append(f"no-op: {record['noop_reason'].replace('_', ' ')}")
    elif record["actor_idle"] is not None:
        parts.append("critic only" + ": zero advantage" * (record["actor_idle"] == "zero_advantage"))
    for key, count in record.items():
        if key.startswith(DROPPED) and count:
            parts.append(f"{key.removeprefix(DROPPED).replace('_', ' ')} dropped {count:.0f}")
    return ", ".join(parts)


def header() -> str:
    """The line above the rows, note included."""
    return GAP.join([*(column.fill(column.title) for column in COLUMNS), "note"])


def row(record: Record) -> str:
    """One step as plain text; no trailing blanks."""
    return GAP.join([*(column.fill(column.cell(record)) for column in COLUMNS), note(record)]).rstrip()


def styled_row(record: Record) -> Text:
    """The same characters as `row`, with colour where a terminal shows it."""
    text = Text()
    for column in COLUMNS:
        cell = column.cell(record)
        text.append(column.fill(cell), style="dim" if cell == UNDEFINED else column.style).append(GAP)
    text.append(note(record), style="yellow")
    text.rstrip()
    return text


def _shortened(text: str, width: int) -> str:
    # The end of a release name says which one it is.
    return text if len(text) <= width else "…" + text[1 - width :]


def _metric(name: str, width: int, decimals: int = 0, scale: float = 1.0) -> Callable[[Record], str]:
    def cell(record: Record) -> str:
        value = record[name]
        return number(None if value is None else value * scale, width, decimals)

    return cell


def _reward(record: Record) -> str:
    mean = record["reward/mean"]
    whole = mean is not None and float(mean).is_integer()
    return f"{number(mean, 5, 0 if whole else 2)} ({number(record['reward/rolling'], 5, 2)})"


def _grad_norms(record: Record) -> str:
    actor, critic = (number(record[f"{model}/grad_norm"], 5, 2) for model in ("actor", "critic"))
    return f"{actor:>8} / {critic:<5}"


COLUMNS = (
    Column(title="step", width=5, cell=_metric("step", 5)),
    Column(title="release", width=14, cell=lambda record: _shortened(record["release"], 14), left=True, style="cyan"),
    Column(title="arm", width=8, cell=lambda record: record["arm"][:8], left=True, style="dim"),
    Column(title="reward (avg)", width=13, cell=_reward, style="bold"),
    Column(title="lag", width=4, cell=_metric("sao/policy_lag_max", 4)),
    Column(title="queue s", width=7, cell=_metric("sao/queue_age_s_mean", 7, 1)),
    Column(title="clip %", width=6, cell=_metric("pg_clipfrac", 6, 1, scale=100.0)),
    Column(title="EV", width=6, cell=_metric("critic/explained_variance_rolling", 6, 2)),
    Column(title="|g| actor/critic", width=16, cell=_grad_norms),
    Column(title="tokens", width=6, cell=_metric("tokens", 6)),
    Column(title="tok/s", width=6, cell=_metric("tokens_per_s", 6)),
    Column(title="step s", width=6, cell=_metric("time/step_s", 6, 1)),
)
