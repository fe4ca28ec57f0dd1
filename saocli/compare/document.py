"""report.md: a comparison that reads on its own."""

from __future__ import annotations

from collections.abc import Sequence

from saocli.compare.columns import PROCESS_COLUMNS, TASK_COLUMNS, Column, outcome_columns, task_cell
from saocli.compare.results import Comparison
from saocli.compare.sketch import sketch
from saocli.compare.summary import Summary, summarize, summarize_runs
from saocli.compare.table import budget, tuning_note, tuning_rows
from saocli.compare.verdict import flags


def markdown(comparison: Comparison, command: str, verdict: Sequence[str], *, chart: str | None) -> str:
    """The whole document. `verdict`: its sentences; `chart`: the picture's file name, None where a sketch must do."""
    summaries = summarize(comparison)
    outcome = outcome_columns(comparison, summaries)
    parts = [
        f"# {comparison.conf}: {' · '.join(arm.label for arm in comparison.arms)}",
        _what(comparison),
        f"```sh\n{command}\n```",
        "## Result",
        _table(outcome, summaries),
        _table(PROCESS_COLUMNS, summaries),
        _list(verdict),
        *_section("## Take care", _list(flags(comparison))),
        "## Curves",
        _chart(comparison, chart),
        "## Arms",
        _list([f"`{arm.label}`: {' '.join(f'`{setting}`' for setting in arm.settings)}" for arm in comparison.arms]),
        *_section("## Tuning", _tuning(comparison)),
        "## Per seed",
        _per_seed(comparison),
        *_section("## Per task", _per_task(summaries) if len(summaries[0].tasks) > TASK_COLUMNS else ""),
        "## What the columns mean",
        _list(_meanings([*outcome, *PROCESS_COLUMNS[1:]])),
        "## How the numbers were made",
        _list(_how(comparison, summaries)),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _what(comparison: Comparison) -> str:
    digests = sorted({run.base_digest[:12] for arm in comparison.arms for run in arm.runs})
    return (
        f"{comparison.description.rstrip('.')}. Conf `{comparison.conf}`, {budget(comparison)}. Every arm started from "
        f"the same weights ({', '.join(f'`{digest}`' for digest in digests)}) and had the same problems of each seed, "
        "equally often."
    )


def _section(title: str, body: str) -> list[str]:
    return [title, body] if body else []


def _list(lines: Sequence[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def _table(columns: Sequence[Column], summaries: Sequence[Summary]) -> str:
    rows = [[column.cell(summary) for column in columns] for summary in summaries]
    return _rows([[column.title for column in columns], *rows], left=[column.left for column in columns])


def _rows(rows: Sequence[Sequence[str]], *, left: Sequence[bool]) -> str:
    widths = [max(3, *(len(cell) for cell in column)) for column in zip(*rows, strict=True)]
    lines = [
        [
            f"{cell:<{width}}" if is_left else f"{cell:>{width}}"
            for cell, width, is_left in zip(row, widths, left, strict=True)
        ]
        for row in rows
    ]
    rule = [
        ":" + "-" * (width - 1) if is_left else "-" * (width - 1) + ":"
        for width, is_left in zip(widths, left, strict=True)
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in [lines[0], rule, *lines[1:]])


def _chart(comparison: Comparison, chart: str | None) -> str:
    if chart is not None:
        return f"![mean reward of every arm against rollouts, steps and seconds]({chart})"
    drawn = sketch(comparison)
    return f"```text\n{drawn.plain}\n```" if drawn is not None else "Nothing was scored."


def _tuning(comparison: Comparison) -> str:
    if not comparison.tuning:
        return ""
    return f"{tuning_note(comparison)}.\n\n{_rows(tuning_rows(comparison), left=[True, True, False, True])}"


def _per_seed(comparison: Comparison) -> str:
    own = [summary for arm in comparison.arms for summary in summarize_runs(comparison, arm)]
    return f"{_table(outcome_columns(comparison, own), own)}\n\n{_table(PROCESS_COLUMNS, own)}"


def _per_task(summaries: Sequence[Summary]) -> str:
    tasks = [score.task for score in summaries[0].tasks]
    rows = [["task", *(summary.label for summary in summaries)]]
    rows += [[task, *(task_cell(summary.tasks[index]) for summary in summaries)] for index, task in enumerate(tasks)]
    return _rows(rows, left=[True] + [False] * len(summaries))


def _meanings(columns: Sequence[Column]) -> list[str]:
    """A line per meaning; tasks share theirs."""
    titles: dict[str, list[str]] = {}
    for column in columns:
        titles.setdefault(column.meaning, []).append(f"`{column.title}`")
    return [f"{', '.join(names)}: {meaning}" for meaning, names in titles.items()]


def _how(comparison: Comparison, summaries: Sequence[Summary]) -> list[str]:
    methods = sorted({summary.reward.method for summary in summaries if summary.reward is not None})
    return [
        f"Intervals: {', '.join(methods) or 'none'}, over all of an arm's rollouts.",
        "Means over seeds weigh seeds equally; counts, tokens and times are sums over seeds.",
        "Every graded rollout counts, trained or not; evaluations are apart and are never trained on.",
        "Before training, an arm has the base's evaluation of the same seed: same weights, same problems.",
        "A step takes more rollouts in one arm than in another: compare speed by rollouts and tokens, not by commits.",
        "Curves: mean over seeds, band from the lowest to the highest; each stops where the first of its runs does.",
        "`rollouts.csv` has every rollout, `report.json` every number; under `timing` is what depends on the machine.",
    ]
