"""How a diagnosis looks: a mark, what, found, needed in columns that do not jump; the fix below each miss."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from saocli.config.estimate import Estimate, Footprint
from saocli.doctor.finding import Finding, Mark
from saocli.doctor.words import size

SIGN = {Mark.OK: ("✓", "green"), Mark.MISSING: ("✗", "bold red"), Mark.NOTE: ("–", "dim")}
LONGEST = 60  # a longer cell does not widen its column for all
INDENT = "  "


def print_findings(console: Console, findings: Sequence[Finding]) -> None:
    """One line per finding on a wide enough terminal and in a pipe; cells fold inside their column where it is not."""
    what, found, needed = (
        max((len(cell) for cell in column if len(cell) <= LONGEST), default=LONGEST)
        for column in zip(*((one.what, one.found, one.needed) for one in findings), strict=True)
    )
    if console.is_terminal:
        # Mark, indent and gaps take eight columns.
        room = max(console.width - what - 8, 40)
        needed = min(needed, max(room - found, room // 3))
        found = room - needed
    for one in findings:
        _print_row(console, one, (what, found, needed))
        if one.fix:
            _print_fix(console, one.fix, len(INDENT) + 3 + what + 2)


def _print_row(console: Console, one: Finding, widths: tuple[int, int, int]) -> None:
    sign, style = SIGN[one.mark]
    what, found, needed = widths
    if not console.is_terminal:
        line = f"{INDENT}{sign}  {one.what:<{what}}  {one.found:<{found}}  {one.needed}"
        console.print(Text(line.rstrip()), soft_wrap=True)
        return
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(width=len(INDENT) + 1)
    grid.add_column(width=what)
    grid.add_column(width=found, overflow="fold")
    grid.add_column(width=needed, overflow="fold")
    quiet = "dim" if one.mark is Mark.NOTE else ""
    grid.add_row(
        Text(INDENT + sign, style=style),
        Text(one.what, style="bold"),
        Text(one.found, style=style if one.mark is Mark.MISSING else quiet),
        Text(one.needed, style="dim"),
    )
    console.print(grid)


def _print_fix(console: Console, fix: str, column: int) -> None:
    if not console.is_terminal:
        console.print(Text(f"{' ' * column}→ {fix}"), soft_wrap=True)
        return
    grid = Table.grid()
    grid.add_column(width=column)
    grid.add_column(width=2)
    grid.add_column(overflow="fold")
    grid.add_row("", Text("→", style="yellow"), Text(fix, style="yellow"))
    console.print(grid)


def print_estimate(console: Console, plan: Estimate) -> None:
    """The memory of each process part by part, and what the disk will hold."""
    console.print(Text(f"\n{INDENT}memory at full context, estimated", style="bold"))
    rows = [row for footprint in plan.footprints for row in _footprint_rows(footprint)]
    states = f"{size(plan.weights_bytes)} weights, {size(plan.state_bytes)} trainer state"
    if plan.colocated:
        how = "the trainer while it steps and what is left of the engine, or both between two steps"
        rows += [("GPU", "", size(most), how, "bold") for most in plan.gpu_bytes]
    rows.append(("memory", "", size(plan.ram_bytes), "all processes on this machine", "bold"))
    rows.append(("disk", "", size(plan.disk_bytes), f"{plan.kept} releases × ({states})", "bold"))
    process, what, amount = (max(map(len, column)) for column in list(zip(*rows, strict=True))[:3])
    for row in rows:
        lead = Text(f"{INDENT}   {row[0]:<{process}}  {row[1]:<{what}}  ", style="bold")
        lead.append(f"{row[2]:>{amount}}", style=row[4] or "not bold")
        if not console.is_terminal:
            console.print(Text(f"{lead.plain}  {row[3]}".rstrip()), soft_wrap=True)
            continue
        grid = Table.grid(padding=(0, 2, 0, 0))
        grid.add_column(width=len(lead.plain))
        grid.add_column(overflow="fold")
        grid.add_row(lead, Text(row[3], style="dim"))
        console.print(grid)


def _footprint_rows(one: Footprint) -> list[tuple[str, str, str, str, str]]:
    """Process, part, bytes, how they are counted, and the style of the bytes."""
    where = f"{one.process} ({one.device})"
    rows = [
        (where if index == 0 else "", part.what, size(part.bytes), part.how, "") for index, part in enumerate(one.parts)
    ]
    total = f"× {one.copies} = {size(one.bytes * one.copies)}" if one.copies > 1 else ""
    return [*rows, ("", "together", size(one.bytes), total, "bold")] if len(rows) > 1 else rows
