"""curve.png: mean reward of every arm, four ways to look at it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from saocli.compare.curves import Axis, Curve, focus, reward_curves
from saocli.compare.results import Comparison

NO_MATPLOTLIB = "no curve.png without matplotlib: pip install 'saocli[plots]'"

Style = tuple[str, Any, str]  # colour, line, marker

# Okabe and Ito's colours, told apart with any colour vision; line and marker tell arms apart without colour.
BASE_STYLE: Style = ("#555555", (0, (5, 3)), "")
ARM_STYLES: tuple[Style, ...] = (
    ("#0072B2", "-", "o"),
    ("#D55E00", (0, (6, 1, 1, 1)), "s"),
    ("#009E73", (0, (1, 1)), "^"),
    ("#CC79A7", (0, (3, 1, 1, 1, 1, 1)), "D"),
    ("#E69F00", "-", "v"),
    ("#56B4E9", (0, (6, 1, 1, 1)), "P"),
)
MARKERS_PER_LINE = 6
LABEL_GAP = 0.055  # of a panel's height, between the labels of two lines
LABEL_REACH = 0.3  # of a panel's width: how far a label can run into another's


def write_png(comparison: Comparison, path: Path) -> bool:
    """Draw the chart into `path`; False, and no file, where matplotlib is not installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return False
    window = trailing_window(comparison)
    panels = (
        ("mean reward so far", Axis.ROLLOUTS, None),
        (f"mean reward of the last {window} rollouts", Axis.ROLLOUTS, window),
        ("mean reward so far", Axis.STEPS, None),
        ("mean reward so far", Axis.SECONDS, None),
    )
    figure = Figure(figsize=(13, 9), layout="constrained")
    styles = _styles(comparison)
    for axes, (title, axis, panel_window) in zip(figure.subplots(2, 2).flat, panels, strict=True):
        axes.set_title(title, fontsize=13, loc="left")
        axes.set_xlabel(str(axis), fontsize=12)
        axes.set_ylabel("mean reward (score per rollout)", fontsize=12)
        axes.tick_params(labelsize=11)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", color="#dddddd", linewidth=0.8)
        _draw(axes, reward_curves(comparison, axis, window=panel_window), styles)
    figure.suptitle(f"{comparison.conf} · {comparison.rollouts} rollouts per arm and seed", fontsize=16)
    figure.supxlabel(_legend(comparison), fontsize=11, color="#555555")
    figure.savefig(path, dpi=150, format="png")
    return True


def trailing_window(comparison: Comparison) -> int:
    """A quarter of a run, so that a trend within it shows."""
    return max(1, comparison.rollouts // 4)


def _legend(comparison: Comparison) -> str:
    seeds = len(comparison.seeds)
    lines = f"lines: mean of {seeds} seeds · bands: lowest to highest seed" if seeds > 1 else "1 seed"
    return f"{lines} · dashed: untrained {comparison.base.label}, a level where it has no course of its own"


def _styles(comparison: Comparison) -> dict[str, Style]:
    trained = {arm.label: ARM_STYLES[index % len(ARM_STYLES)] for index, arm in enumerate(comparison.trained)}
    return {comparison.base.label: BASE_STYLE} | trained


def _draw(axes: Any, curves: Sequence[Curve], styles: Mapping[str, Style]) -> None:
    if not curves:
        axes.text(0.5, 0.5, "nothing was trained", transform=axes.transAxes, ha="center", color="#555555", fontsize=12)
        return
    end = max(curve.x[-1] for curve in curves)
    low, high = focus(curves, bands=True)
    axes.set_xlim(0, end)
    axes.set_ylim(low, high)
    for curve in curves:
        colour, line, marker = style = styles[curve.label]
        every = max(1, len(curve.x) // MARKERS_PER_LINE)
        # The base's dashes lie on top: an arm that learned nothing would cover them.
        above = 4 if style is BASE_STYLE else 3
        axes.plot(
            curve.x, curve.mean, color=colour, linestyle=line, linewidth=2, marker=marker, markevery=every, zorder=above
        )
        if style is not BASE_STYLE:
            axes.fill_between(curve.x, curve.low, curve.high, color=colour, alpha=0.1, linewidth=0)
    _label(axes, curves, styles, end=end, height=high - low)


def _label(axes: Any, curves: Sequence[Curve], styles: Mapping[str, Style], *, end: float, height: float) -> None:
    """Name each line where it ends, with its last value."""
    from matplotlib.patheffects import withStroke

    ends = [(curve.x[-1], curve.mean[-1]) for curve in curves]
    heights = spread(ends, gap=LABEL_GAP * height, reach=LABEL_REACH * end)
    for curve, (x, value), y in zip(curves, ends, heights, strict=True):
        axes.annotate(
            f"{curve.label} {value:.2f}",
            (x, y),
            (8, 0),
            textcoords="offset points",
            va="center",
            annotation_clip=False,
            color=styles[curve.label][0],
            fontsize=11,
            fontweight="bold",
            path_effects=[withStroke(linewidth=3, foreground="white")],
        )


def spread(ends: Sequence[tuple[float, float]], *, gap: float, reach: float) -> list[float]:
    """The ends' heights, moved up until each is `gap` above the lower ones that are less than `reach` aside."""
    order = sorted(range(len(ends)), key=lambda index: ends[index][1])
    moved = [y for _, y in ends]
    for place, index in enumerate(order):
        for lower in order[:place]:
            if abs(ends[index][0] - ends[lower][0]) < reach:
                moved[index] = max(moved[index], moved[lower] + gap)
    return moved
