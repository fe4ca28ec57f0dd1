"""What a comparison says of itself: which arms are separated, what would show it, and what to be careful about."""

from __future__ import annotations

from dataclasses import replace

import comparekit
import pytest
from comparekit import arm, comparison

from saocli.compare.results import ArmResult, HeldOut
from saocli.compare.stats import Difference
from saocli.compare.verdict import check_same_start, differences, flags, headline, sentence
from saocli.errors import RunError


def passes(count: int, of: int = 48) -> list[float]:
    return [1.0] * count + [0.0] * (of - count)


FOUND = Difference(
    name="sao − grpo_dis",
    mean=0.1458,
    low=-0.0211,
    high=0.3124,
    p=0.0931,
    effect=1.1,
    effect_name="Cohen's d_z",
    method="paired t over 3 seeds, bootstrap over seeds and tasks",
    unit="seed",
    seeds=3,
    counted="rollouts",
    rollouts=144,
    separated=False,
    needed_rollouts=432,
    needed_seeds=9,
    target=0.1458,
    note=None,
)
NOTE = "one run per arm says nothing of the spread between runs"
ONE_SEED = replace(
    FOUND,
    unit="rollout",
    seeds=1,
    rollouts=48,
    p=0.538,
    needed_rollouts=993,
    needed_seeds=None,
    target=0.0625,
    note=NOTE,
)


def test_not_separated_says_what_would_show_it() -> None:
    assert sentence(FOUND) == (
        "sao − grpo_dis   +0.146  (bootstrap 95%: −0.02 … +0.31, p 0.093, 3 seeds): not separated at this budget; "
        "about 432 rollouts per arm (9 seeds) would show a difference of 0.15."
    )


def test_separated() -> None:
    found = replace(FOUND, low=0.0512, p=0.00002, separated=True)
    assert sentence(found) == (
        "sao − grpo_dis   +0.146  (bootstrap 95%: +0.05 … +0.31, p < 0.001, 3 seeds): separated."
    )


def test_one_run_per_arm_is_no_verdict_on_arms() -> None:
    assert sentence(ONE_SEED).endswith(
        "p 0.54, 1 seed): not separated at this budget; about 1000 rollouts per arm (in 3 seeds or more) would show a "
        f"difference of 0.06; {NOTE}."
    )
    assert sentence(replace(ONE_SEED, low=0.01, p=0.02)).endswith(
        f"p 0.02, 1 seed): these runs differ, the arms are not separated; 3 seeds could show it; {NOTE}."
    )


@pytest.mark.parametrize("needed", [None, 100, 144])
def test_a_budget_that_showed_nothing_is_no_advice(needed: int | None) -> None:
    assert sentence(replace(FOUND, needed_rollouts=needed)).endswith("3 seeds): not separated at this budget.")


def test_nothing_has_no_sign() -> None:
    none = replace(FOUND, mean=-0.0001, low=0.0, high=0.0, p=1.0, needed_rollouts=None)
    assert sentence(none).startswith("sao − grpo_dis   0.000  (bootstrap 95%: 0.00 … 0.00, p 1, 3 seeds)")


def three(sao: int = 30, grpo: int = 24) -> tuple[ArmResult, ArmResult, ArmResult]:
    seeds = range(3)
    return (
        arm("base", {seed: passes(20 + seed) for seed in seeds}),
        arm("sao", {seed: passes(sao + 2 * seed) for seed in seeds}),
        arm("grpo", {seed: passes(grpo - seed) for seed in seeds}),
    )


def test_every_arm_against_the_base_then_against_the_ones_named_later() -> None:
    found = differences(comparison(*three()))
    assert [one.name for one in found] == ["sao − base", "grpo − base", "sao − grpo"]
    assert found[0].mean == pytest.approx(11 / 48)
    assert found[2].mean == pytest.approx(9 / 48)


def test_the_headline_is_about_trained_arms_against_each_other() -> None:
    made = comparison(*three())
    assert [text.split("   ")[0] for text in headline(made, differences(made))] == ["sao − grpo"]
    alone = comparison(*three()[:2])
    assert [text.split("   ")[0] for text in headline(alone, differences(alone))] == ["sao − base"]


def test_held_out_follows_the_reward() -> None:
    base, sao, _ = three()
    after = (HeldOut(step=48, temperature=1.0, samples=100, passed=70.0),)
    sao = replace(sao, runs=tuple(replace(run, held_out=after) for run in sao.runs))
    found = differences(comparison(base, sao))
    assert [one.name for one in found] == ["sao − base", "sao − base, held-out at temperature 1"]
    assert found[1].mean == pytest.approx(0.3)


def test_an_arm_without_scores_has_no_difference() -> None:
    base, sao, _ = three()
    broken = comparison(base, sao, arm("grpo", {0: [], 1: [], 2: []}))
    assert [one.name for one in differences(broken)] == ["sao − base"]
    assert flags(broken) == [
        "grpo has fewer scored rollouts than the budget: 0 of 48 with seed 0, 0 of 48 with seed 1, 0 of 48 with seed 2"
    ]


def test_a_fair_comparison_has_no_flag() -> None:
    assert flags(comparison(*three())) == []


def with_dropped(made: ArmResult, *counts: dict[str, int]) -> ArmResult:
    return replace(made, runs=tuple(replace(run, dropped=one) for run, one in zip(made.runs, counts, strict=True)))


def test_an_arm_that_drops_more_is_told_of() -> None:
    base, sao, grpo = three()
    sao = with_dropped(sao, {"stale": 10, "empty_completion": 2}, {"stale": 12}, {"stale": 12})
    grpo = with_dropped(grpo, {}, {"stale": 1}, {})
    # The base trains nothing, and is never said to drop.
    base = with_dropped(base, *[{"no_references": 48}] * 3)
    assert flags(comparison(base, sao, grpo)) == [
        "sao dropped 25% (36 of 144) of its rollouts (34 stale, 2 empty completion), grpo 1% (1 of 144): "
        "they trained on different parts of the same budget"
    ]


@pytest.mark.parametrize("dropped", [{"stale": 1}, {"stale": 5}])
def test_a_few_dropped_are_not(dropped: dict[str, int]) -> None:
    # 5 of 144 against none has p 0.02, and changes little
    base, sao, grpo = three()
    assert flags(comparison(base, with_dropped(sao, dropped, {}, {}), grpo)) == []


def test_commits_that_are_mostly_noops() -> None:
    base, sao, grpo = three()

    def noops(made: ArmResult, count: int) -> ArmResult:
        steps = tuple(comparekit.step(n, operation="noop" if n <= count else "training") for n in range(1, 13))
        return replace(made, runs=tuple(replace(run, steps=steps) for run in made.runs))

    assert flags(comparison(base, sao, noops(grpo, 6))) == []
    assert flags(comparison(base, sao, noops(grpo, 7))) == [
        "21 of 36 commits of grpo were no-ops: it learned from the others alone"
    ]


def test_a_run_short_of_the_budget_and_one_that_is_missing() -> None:
    base, sao, _ = three()
    short = replace(sao, runs=(sao.runs[0], replace(sao.runs[1], rollouts=sao.runs[1].rollouts[:40])))
    assert flags(comparison(base, short)) == [
        "sao has fewer scored rollouts than the budget: 40 of 48 with seed 1, 0 of 48 with seed 2"
    ]


def test_arms_of_other_weights_are_not_compared() -> None:
    base, sao, grpo = three()
    other = replace(sao, runs=(*sao.runs[:2], replace(sao.runs[2], base_digest="f" * 64)))
    with pytest.raises(
        RunError, match="same weights with seed 2: base 000000000000, sao ffffffffffff, grpo 000000000000"
    ):
        check_same_start(comparison(base, other, grpo))


def test_each_seed_may_have_weights_of_its_own() -> None:
    made = [
        replace(one, runs=tuple(replace(run, base_digest=str(run.seed) * 64) for run in one.runs)) for one in three()
    ]
    check_same_start(comparison(*made))
