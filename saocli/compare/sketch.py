"""The reward curves in characters: braille dots, eight to a cell, each line named where it ends."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping

from rich.text import Text

from saocli.compare.curves import Axis, Curve, focus, reward_curves
from saocli.compare.results import Comparison
from saocli.metrics.table import number

WIDTH, HEIGHT = 64, 12  # cells
COLUMNS, ROWS = 2 * WIDTH, 4 * HEIGHT  # dots
MARGIN = 7  # cells left of the axis
BASE_STYLE = "bright_black"
ARM_STYLES = ("cyan", "yellow", "magenta", "green", "blue", "red")

# Bits of U+2800 by row and column of a cell's dots.
BITS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))

Cell = tuple[int, int]  # row, column


def sketch(comparison: Comparison) -> Text | None:
    """Mean reward so far against scored rollouts, the base dotted; None while nothing was scored."""
    curves = reward_curves(comparison, Axis.ROLLOUTS)
    if not curves:
        return None
    low, high = focus(curves, bands=False)
    end = max(curve.x[-1] for curve in curves)
    styles = arm_styles(comparison)
    dots: dict[Cell, tuple[int, str]] = {}
    labels: dict[int, tuple[str, str]] = {}
    for curve in curves:
        rows = _rows(curve, end, low, high)
        for row, column in _line(rows, dotted=curve.label == comparison.base.label):
            cell = (row // 4, column // 2)
            dots[cell] = (dots.get(cell, (0, ""))[0] | BITS[row % 4][column % 2], styles[curve.label])
        place = _free_row(labels, min(max(rows[-1] // 4, 0), HEIGHT - 1))
        labels[place] = (f"{curve.label} {curve.mean[-1]:.2f}", styles[curve.label])
    return _drawn(dots, labels, low, high, end)


def arm_styles(comparison: Comparison) -> dict[str, str]:
    """The colour of every arm."""
    trained = {arm.label: ARM_STYLES[index % len(ARM_STYLES)] for index, arm in enumerate(comparison.trained)}
    return {comparison.base.label: BASE_STYLE} | trained


def _rows(curve: Curve, end: float, low: float, high: float) -> list[int]:
    """The dot row, 0 at the top, in each dot column up to the curve's end."""
    xs = [end * (column + 1) / COLUMNS for column in range(COLUMNS)]
    heights = [_between(curve, x) for x in xs if x <= curve.x[-1]] or [curve.mean[-1]]
    return [round((high - height) / (high - low) * (ROWS - 1)) for height in heights]


def _between(curve: Curve, x: float) -> float:
    """The curve's mean at `x`, on the straight line between its points."""
    right = bisect_right(curve.x, x)
    if right in {0, len(curve.x)}:
        return curve.mean[max(0, right - 1)]
    share = (x - curve.x[right - 1]) / (curve.x[right] - curve.x[right - 1])
    return curve.mean[right - 1] + share * (curve.mean[right] - curve.mean[right - 1])


def _line(rows: list[int], *, dotted: bool) -> list[Cell]:
    """The dots of a line: steep parts filled up, or two columns in four left out; without what is out of the frame."""
    dots = []
    for column, row in enumerate(rows):
        before = rows[max(0, column - 1)]
        if dotted:
            filled = range(row, row + 1) if column % 4 < 2 else range(0)
        elif row > before:
            filled = range(before + 1, row + 1)
        else:
            filled = range(row, max(row + 1, before))
        dots += [(dot, column) for dot in filled if 0 <= dot < ROWS]
    return dots


def _free_row(labels: Mapping[int, object], row: int) -> int:
    """The nearest row without a label; `row` itself where there are more labels than rows."""
    free = (near for near in range(HEIGHT) if near not in labels)
    return min(free, key=lambda near: abs(near - row), default=row)


def _drawn(
    dots: Mapping[Cell, tuple[int, str]], labels: Mapping[int, tuple[str, str]], low: float, high: float, end: float
) -> Text:
    text = Text(f"{'':{MARGIN}} mean reward so far\n", no_wrap=True)
    for row in range(HEIGHT):
        marked = row in {0, HEIGHT // 2, HEIGHT - 1}
        value = number(high - (row + 0.5) / HEIGHT * (high - low), MARGIN - 1, 2) if marked else ""
        text.append(f"{value:>{MARGIN}} {'┤' if marked else '│'}", style="dim")
        for column in range(WIDTH):
            bits, style = dots.get((row, column), (0, ""))
            text.append(chr(0x2800 + bits) if bits else " ", style=style)
        label, style = labels.get(row, ("", ""))
        text.append(f" {label}\n", style=style)
    text.append(f"{'':{MARGIN}} └{'─' * WIDTH}\n", style="dim")
    text.append(f"{'':{MARGIN}}  {'0':<{WIDTH // 2}}{f'{end:.0f} {Axis.ROLLOUTS}':>{WIDTH // 2}}")
    return text
