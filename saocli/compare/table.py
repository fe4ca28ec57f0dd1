"""What `sao compare` prints at its end: tables, a sketch of the curves, verdict, flags, and where to read on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from saocli.compare.chart import NO_MATPLOTLIB
from saocli.compare.columns import PROCESS_COLUMNS, Column, outcome_columns
from saocli.compare.results import Comparison
from saocli.compare.sketch import arm_styles, sketch
from saocli.compare.stats import Difference
from saocli.compare.summary import Summary, summarize
from saocli.compare.verdict import flags, headline, outcome, p_value, signed
from saocli.metrics.table import UNDEFINED

GAP = "  "


def print_comparison(
    comparison: Comparison, found: Sequence[Difference], console: Console, paths: Sequence[Path] = ()
) -> None:
    """Everything a person needs to see; `found` are its differences, `paths` the report's files.

    Tables keep their lines, sentences fold at words where the console is narrow. The sketch of the curves is for
    terminals: without colour its lines run into each other, and a pipe has the report.
    """
    for table in _tables(comparison, console.width):
        console.print(*table, sep="\n", end="\n\n", soft_wrap=True)
    drawn = sketch(comparison) if console.is_terminal else None
    if drawn is not None:
        console.print(drawn, end="\n\n", soft_wrap=True)
    console.print(*_differences(found), sep="\n", end="\n\n", soft_wrap=True)
    for text in headline(comparison, found):
        console.print(Text(text, style="bold"))
    for text in flags(comparison):
        console.print(Text(f"! {text}", style="yellow"))
    if paths:
        console.print()
        console.print(Text("  ".join(str(path) for path in paths), style="dim"), soft_wrap=True)
        if not any(path.suffix == ".png" for path in paths):
            console.print(Text(NO_MATPLOTLIB, style="dim"), soft_wrap=True)


def _tables(comparison: Comparison, width: int) -> list[list[Text]]:
    summaries = summarize(comparison)
    styles = arm_styles(comparison)
    return [
        [Text(f"{comparison.conf} · {budget(comparison)}", style="bold")],
        *([_tuning(comparison)] if comparison.tuning else []),
        grid(_fitting(comparison, summaries, width), summaries, styles),
        grid(PROCESS_COLUMNS, summaries, styles),
    ]


def _differences(found: Sequence[Difference]) -> list[Text]:
    rows = [("difference", "Δ", "bootstrap 95%", "p", "")]
    rows += [
        (one.name, signed(one.mean, 3), f"{signed(one.low, 2)} … {signed(one.high, 2)}", p_value(one.p), outcome(one))
        for one in found
    ]
    lines = _aligned(rows, left=[True, False, False, False, True])
    lines[0].stylize("dim")
    return lines


def budget(comparison: Comparison) -> str:
    """What every arm got, in words."""
    seeds = ", ".join(str(seed) for seed in comparison.seeds)
    word = "seed" if len(comparison.seeds) == 1 else "seeds"
    return f"{comparison.rollouts} rollouts per arm and seed, {word} {seeds}"


def _fitting(comparison: Comparison, summaries: Sequence[Summary], width: int) -> Sequence[Column]:
    """Tasks are one column where a column each would not fit the console."""
    columns = outcome_columns(comparison, summaries)
    if max(line.cell_len for line in grid(columns, summaries)) <= width:
        return columns
    return outcome_columns(comparison, summaries, each_task=False)


def grid(columns: Sequence[Column], summaries: Sequence[Summary], styles: dict[str, str] | None = None) -> list[Text]:
    """A head and a line per arm, every column as wide as its widest cell; `styles` colours labels."""
    cells = [[column.cell(summary) for column in columns] for summary in summaries]
    lines = _aligned([[column.title for column in columns], *cells], left=[column.left for column in columns])
    lines[0].stylize("dim")
    for line, summary in zip(lines[1:], summaries, strict=True):
        line.stylize((styles or {}).get(summary.label, ""), 0, len(summary.label) + 1)
    return lines


def _aligned(rows: Sequence[Sequence[str]], *, left: Sequence[bool]) -> list[Text]:
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        line = Text(" ", no_wrap=True)
        for cell, width, is_left in zip(row, widths, left, strict=True):
            padded = f"{cell:<{width}}" if is_left else f"{cell:>{width}}"
            line.append(padded, style="dim" if cell == UNDEFINED else "").append(GAP)
        line.rstrip()
        lines.append(line)
    return lines


def tuning_note(comparison: Comparison) -> str:
    """How many tries each arm had, and on what."""
    tries = {one.label: len(one.tried) for one in comparison.tuning}
    seeds = sorted({one.seed for one in comparison.tuning})
    counts = set(tries.values())
    each = (
        f"{counts.pop()} for each arm" if len(counts) == 1 else ", ".join(f"{n} for {arm}" for arm, n in tries.items())
    )
    word = "seed" if len(seeds) == 1 else "seeds"
    return f"tries: {each}, one run each on {word} {', '.join(map(str, seeds))}, which no run of the comparison has"


def tuning_rows(comparison: Comparison) -> list[tuple[str, str, str, str]]:
    """A row per try, the head first."""
    rows = [("arm", "setting", "reward", "")]
    for one in comparison.tuning:
        rows += [
            (one.label, setting, f"{reward:.3f}", "chosen" if setting == one.chosen else "")
            for setting, reward in one.tried
        ]
    return rows


def _tuning(comparison: Comparison) -> list[Text]:
    lines = _aligned(tuning_rows(comparison), left=[True, True, False, True])
    lines[0].stylize("dim")
    return [Text(tuning_note(comparison)), *lines]
