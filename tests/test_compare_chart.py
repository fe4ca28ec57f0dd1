"""The picture is drawn when matplotlib is there; the sketch in characters always."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from comparekit import arm, comparison

from saocli.compare.chart import spread, trailing_window, write_png
from saocli.compare.sketch import HEIGHT, WIDTH, sketch

RISING = [float(index % 3 > 0 or index > 20) for index in range(48)]
FALLING = [1.0 - score for score in RISING]


@pytest.mark.parametrize("seeds", [(1,), (1, 2, 3)])
def test_a_picture_of_any_comparison(tmp_path: Path, seeds: tuple[int, ...]) -> None:
    pytest.importorskip("matplotlib")
    made = comparison(
        arm("base", dict.fromkeys(seeds, FALLING)), arm("sao", dict.fromkeys(seeds, RISING)), arm("grpo", {1: ()})
    )
    assert write_png(made, tmp_path / "curve.png")
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")
    assert write_png(comparison(arm("base", {1: (0.0,)})), tmp_path / "curve.png")


def test_no_picture_without_matplotlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)  # what an import of a missing module does
    assert not write_png(comparison(arm("base", {1: RISING})), tmp_path / "curve.png")
    assert list(tmp_path.iterdir()) == []


def test_labels_keep_apart_where_they_would_touch_and_stay_where_they_would_not() -> None:
    assert spread([(10, 0.5), (10, 0.5), (10, 0.52), (1, 0.5)], gap=0.1, reach=3) == pytest.approx([0.5, 0.6, 0.7, 0.5])


def test_the_window_is_a_quarter_of_a_run() -> None:
    assert trailing_window(comparison(arm("base", {1: RISING}))) == 12
    assert trailing_window(comparison(arm("base", {1: (1.0,)}))) == 1


def test_the_sketch_names_every_line_where_it_ends() -> None:
    drawn = sketch(comparison(arm("base", {1: FALLING}), arm("sao", {1: RISING})))
    assert drawn is not None
    text = drawn.plain.splitlines()
    assert len(text) == HEIGHT + 3
    upper = next(row for row, line in enumerate(text) if line.endswith("sao 0.85"))
    lower = next(row for row, line in enumerate(text) if line.endswith("base 0.15"))
    assert upper < lower
    assert text[-1].endswith("48 scored rollouts")


def test_a_level_line_is_straight_and_the_base_dotted() -> None:
    drawn = sketch(comparison(arm("base", {1: [0.0] * 48}), arm("sao", {1: [1.0] * 48})))
    assert drawn is not None
    rows = [line for line in drawn.plain.splitlines() if line.endswith(("sao 1.00", "base 0.00"))]
    solid, dotted = ([ord(cell) - 0x2800 if cell != " " else 0 for cell in row[9 : 9 + WIDTH]] for row in rows)
    assert len(set(solid)) == 1
    assert dotted[::2] == [dotted[0]] * (WIDTH // 2)
    assert dotted[0] > 0
    assert set(dotted[1::2]) == {0}


def test_nothing_scored_is_nothing_to_draw() -> None:
    assert sketch(comparison(arm("base", {1: ()}), arm("sao", {1: ()}))) is None
