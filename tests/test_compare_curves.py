"""Curves against means worked out by hand, on all three axes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from comparekit import arm, comparison, rollouts, run
from hypothesis import given
from hypothesis import strategies as st

from saocli.compare.curves import Axis, focus, reward_curves, trailing_means
from saocli.compare.results import ArmResult


def test_the_mean_so_far_is_over_seeds_with_the_lowest_and_highest_beside_it() -> None:
    made = comparison(arm("base", {1: (0, 0), 2: (0, 1)}), arm("sao", {1: (1, 1), 2: (0, 1)}))
    base, sao = reward_curves(made, Axis.ROLLOUTS)
    assert (base.label, base.x, base.mean) == ("base", (1.0, 2.0), (0.0, 0.25))
    assert (sao.mean, sao.low, sao.high) == ((0.5, 0.75), (0.0, 0.5), (1.0, 1.0))


def test_a_window_starts_once_it_is_full() -> None:
    made = comparison(arm("base", {1: (0, 0, 0, 0)}), arm("sao", {1: (1, 0, 1, 1)}))
    sao = reward_curves(made, Axis.ROLLOUTS, window=2)[1]
    assert (sao.x, sao.mean) == ((2.0, 3.0, 4.0), (0.5, 0.5, 1.0))


def test_along_steps_a_rollout_counts_from_the_step_that_trained_it() -> None:
    scored = rollouts((1, 0, 0, 1, 1))
    steps = (None, 1, 1, 3, None)  # the first was dropped before any step, the last after step 3
    moved = tuple(replace(one, step=at) for one, at in zip(scored, steps, strict=True))
    made = comparison(arm("base", {1: (0.25, 0.75)}), arm("sao", {1: (0,)}, rollouts=moved))
    base, sao = reward_curves(made, Axis.STEPS)
    assert (sao.x, sao.mean) == ((0.0, 1.0, 2.0, 3.0), pytest.approx((1.0, 1 / 3, 1 / 3, 3 / 5)))
    assert (base.x, base.mean) == ((0.0, 3.0), (0.5, 0.5))


def test_along_seconds_a_curve_holds_its_value_and_stops_with_its_first_run() -> None:
    quick = run(1, (0, 1), rollouts=rollouts((0, 1), seconds=1.0))
    slow = run(2, (1, 1), rollouts=rollouts((1, 1), seconds=3.0))
    made = comparison(
        arm("base", {1: (0,), 2: (0,)}), ArmResult(label="sao", arm="sao", settings=(), runs=(quick, slow))
    )
    assert [
        curve.label for curve in reward_curves(made, Axis.SECONDS)
    ] == []  # the quick run ended before the slow began
    slow = replace(slow, rollouts=rollouts((1, 1), seconds=1.5))
    made = comparison(made.base, replace(made.trained[0], runs=(quick, slow)))
    sao = reward_curves(made, Axis.SECONDS)[1]
    assert (sao.x[0], sao.x[-1]) == (1.5, 2.0)
    assert (sao.mean[0], sao.mean[-1]) == (0.5, 0.75)


def test_arms_that_scored_nothing_have_no_curve() -> None:
    made = comparison(arm("base", {1: (0, 1)}), arm("sao", {1: ()}))
    assert [curve.label for curve in reward_curves(made, Axis.ROLLOUTS)] == ["base"]
    assert reward_curves(made, Axis.STEPS) == []


@given(st.lists(st.floats(-10, 10), min_size=1, max_size=40), st.integers(1, 50))
def test_trailing_means_are_the_means_of_the_slices(scores: list[float], window: int) -> None:
    plain = [sum(part := scores[max(0, end - window) : end]) / len(part) for end in range(1, len(scores) + 1)]
    assert trailing_means(scores, window) == pytest.approx(plain, abs=1e-12)


def test_the_frame_leaves_out_the_first_quarter_and_never_has_no_height() -> None:
    made = comparison(arm("base", {1: (1, *[0.5] * 99)}), arm("sao", {1: [0.5] * 100}))
    low, high = focus(reward_curves(made, Axis.ROLLOUTS), bands=False)
    assert (low, high) == (pytest.approx(0.48), pytest.approx(0.54, abs=0.01))
    flat = comparison(arm("base", {1: (0.0,)}))
    assert focus(reward_curves(flat, Axis.ROLLOUTS), bands=True) == (-0.02, 0.02)
