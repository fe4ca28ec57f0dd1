"""An arm's numbers, against numbers worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from comparekit import arm, comparison, rollouts, run, step

from saocli.compare.results import ArmResult, Comparison, HeldOut
from saocli.compare.summary import Change, summarize, summarize_runs

ZEROS = (0.0,) * 6


def with_runs(*runs: object, label: str = "sao") -> Comparison:
    seeds = {each.seed: ZEROS for each in runs}  # type: ignore[attr-defined]
    trained = ArmResult(label=label, arm=label, settings=(), runs=runs)  # type: ignore[arg-type]
    return comparison(arm("base", seeds), trained)


def test_counts_are_sums_over_seeds_and_the_mean_is_of_all_rollouts() -> None:
    scores = {1: (1, 0, 1, 1, 0, 1), 2: (0, 0, 1, 1, 0, 1), 3: ZEROS}
    base, sao = summarize(comparison(arm("base", scores), arm("sao", scores)))
    assert (sao.rollouts, sao.commits, sao.noops, sao.tokens) == (18, 18, 0, 180)
    assert sao.reward is not None
    assert sao.reward.mean == pytest.approx(7 / 18)
    assert sao.reward.low is not None
    assert sao.reward.high is not None
    assert 0 < sao.reward.low < 7 / 18 < sao.reward.high < 1
    assert (base.commits, base.noops, base.dropped, base.dropped_share) == (None, None, None, None)
    assert base.rollouts == 18


def test_tasks_are_counted_where_every_score_of_every_arm_is_0_or_1() -> None:
    base = arm("base", {1: (1, 1, 0, 1, 0, 0)})
    graded = arm("sao", {1: (1, 0, 0.5, 1, 0, 0.25)})
    add1, larger, word = summarize(comparison(base, graded))[0].tasks
    assert (add1.task, add1.rollouts, add1.total, add1.counted) == ("add1", 2, 2.0, True)
    assert (larger.total, larger.counted) == (1.0, True)
    assert (word.total, word.counted) == (0.0, False)
    assert summarize(comparison(base, graded))[1].tasks[2].mean == 0.375


def test_an_arm_without_its_own_evaluation_before_has_the_base_of_the_same_seed() -> None:
    def held(at: int, passed: float, temperature: float = 1.0) -> HeldOut:
        return HeldOut(step=at, temperature=temperature, samples=10, passed=passed)

    base = ArmResult(
        label="base",
        arm="base",
        settings=(),
        runs=tuple(run(seed, ZEROS, trained=False, held_out=(held(0, 3 * seed),)) for seed in (1, 2)),
    )
    sao = ArmResult(
        label="sao",
        arm="sao",
        settings=(),
        runs=(
            run(1, ZEROS, held_out=(held(0, 1), held(3, 5), held(6, 7), held(6, 9, 0.0))),
            run(2, ZEROS, held_out=(held(6, 8),)),
        ),
    )
    first, second = summarize(comparison(base, sao))
    assert (first.sampled, first.greedy) == (
        Change(before=pytest.approx(0.45), after=None),
        Change(before=None, after=None),
    )
    # Its own 0.1 of seed 1 and the base's 0.6 of seed 2; the last of two evaluations after.
    assert second.sampled == Change(before=pytest.approx(0.35), after=pytest.approx(0.75))
    assert second.greedy == Change(before=None, after=0.9)


def test_the_clip_fraction_weighs_steps_by_tokens_and_skips_undefined_ones() -> None:
    steps = (
        step(1, tokens=10, pg_clipfrac=0.5),
        step(2, tokens=30, pg_clipfrac=0.1),
        step(3, tokens=1000),
    )
    assert summarize(with_runs(run(1, ZEROS, steps=steps)))[1].clip_fraction == pytest.approx(0.2)


def test_lag_is_a_mean_over_steps_and_explained_variance_the_last_defined_of_each_seed() -> None:
    lag, ev = "sao/policy_lag_mean", "critic/explained_variance_rolling"
    one = run(1, ZEROS, steps=(step(1, **{lag: 0.0, ev: 0.9}), step(2, **{lag: 3.0, ev: 0.2}), step(3)))
    two = run(2, ZEROS, steps=(step(1, **{lag: 0.0, ev: -0.4}),))
    three = run(3, ZEROS, steps=(step(1),))
    sao = summarize(with_runs(one, two, three))[1]
    assert sao.policy_lag == pytest.approx(1.0)
    assert sao.explained_variance == pytest.approx(-0.1)


def test_noops_are_not_commits_and_drops_are_a_share_of_scored_rollouts() -> None:
    steps = (step(1), step(2, operation="noop"), step(3, operation="noop"))
    sao = summarize(with_runs(run(1, ZEROS, steps=steps, dropped={"stale": 2, "aborted": 1})))[1]
    assert (sao.commits, sao.noops, sao.dropped, sao.dropped_share) == (1, 2, 3, 0.5)


def test_rates_are_per_time_of_play() -> None:
    slow = run(1, ZEROS, start_s=100.0, play_s=30.0, eval_s=50.0)
    fast = run(2, ZEROS, start_s=1.0, play_s=6.0, eval_s=2.0)
    timing = summarize(with_runs(slow, fast))[1].timing
    assert (timing.start_s, timing.play_s, timing.eval_s) == (101.0, 36.0, 52.0)
    assert timing.rollouts_per_min == pytest.approx(20.0)
    assert timing.tokens_per_s == pytest.approx(120 / 36)


def test_an_arm_with_nothing_has_nothing_defined() -> None:
    empty = run(1, (), steps=(), play_s=0.0)
    sao = summarize(with_runs(empty))[1]
    assert sao.reward is None
    assert (sao.policy_lag, sao.clip_fraction, sao.explained_variance, sao.dropped_share) == (None,) * 4
    assert (sao.timing.rollouts_per_min, sao.timing.tokens_per_s) == (None, None)
    assert [score.mean for score in sao.tasks] == [None] * 3


def test_runs_alone_add_up_to_the_arm() -> None:
    scores = {1: (1, 0, 1, 1, 0, 1), 2: (0, 0, 1, 1, 0, 1)}
    made = comparison(arm("base", scores), arm("sao", scores))
    own = summarize_runs(made, made.trained[0])
    assert [summary.label for summary in own] == ["sao · seed 1", "sao · seed 2"]
    assert [summary.tasks[0].total for summary in own] == [2.0, 1.0]
    assert sum(summary.rollouts for summary in own) == summarize(made)[1].rollouts


def test_tasks_keep_the_order_in_which_the_base_met_them() -> None:
    base = arm("base", {1: ZEROS}, rollouts=rollouts(ZEROS, tasks=("b", "a"), trained=False))
    sao = replace(arm("sao", {1: ZEROS}), runs=(run(1, ZEROS, rollouts=rollouts(ZEROS, tasks=("c", "a"))),))
    assert [score.task for score in summarize(comparison(base, sao))[0].tasks] == ["b", "a", "c"]
