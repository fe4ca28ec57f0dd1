"""Intervals, tests, bootstrap and power: known numbers, scores without spread, and how often they are right."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace

import comparekit
import numpy as np
import pytest
from scipy import stats

from saocli.compare.power import rollouts_to_show_d, rollouts_to_show_rates, seeds_to_show
from saocli.compare.resample import seed_means, stratified_means
from saocli.compare.results import ArmResult, HeldOut
from saocli.compare.stats import Difference, arm_interval, difference, held_out_difference, mean_interval
from saocli.compare.two_samples import welch
from saocli.errors import RunError


def passes(count: int, of: int = 48) -> list[float]:
    return [1.0] * count + [0.0] * (of - count)


def arm(label: str, runs: Mapping[int, Mapping[str, Sequence[float]]]) -> ArmResult:
    """An arm from its scores by seed and task."""
    made = comparekit.arm(label, {seed: [0.0] for seed in runs})
    results = []
    for run, tasks in zip(made.runs, runs.values(), strict=True):
        scores = [score for values in tasks.values() for score in values]
        names = [task for task, values in tasks.items() for _ in values]
        results.append(replace(run, rollouts=comparekit.rollouts(scores, tasks=names)))
    return replace(made, runs=tuple(results))


def by_seed(label: str, *means: float, tasks: int = 4) -> ArmResult:
    """Seed by seed an arm whose every task has this mean, from ten rollouts of 0 and 1."""
    return arm(
        label, {seed: {f"t{i}": passes(round(10 * mean), 10) for i in range(tasks)} for seed, mean in enumerate(means)}
    )


def assert_finite(found: Difference) -> None:
    numbers = [value for value in asdict(found).values() if isinstance(value, float)]
    assert all(map(math.isfinite, numbers)), found


# intervals


@pytest.mark.parametrize(
    ("passed", "low", "high"), [(23, 0.34471, 0.61671), (20, 0.28850, 0.55719), (0, 0.0, 0.07410), (48, 0.92590, 1.0)]
)
def test_wilson_for_scores_of_0_and_1(passed: int, low: float, high: float) -> None:
    found = mean_interval(passes(passed))
    assert (found.low, found.high, found.method) == (
        pytest.approx(low, abs=1e-5),
        pytest.approx(high, abs=1e-5),
        "Wilson",
    )
    assert found.mean == passed / 48


def test_t_for_partial_credit() -> None:
    # sd 0.25820, standard error 0.12910, t(3) = 3.18245
    found = mean_interval([0.2, 0.4, 0.6, 0.8])
    assert (found.low, found.high) == (pytest.approx(0.08915, abs=1e-4), pytest.approx(0.91085, abs=1e-4))
    assert found.method == "t"


def test_no_spread_is_no_crash() -> None:
    constant = mean_interval([0.5] * 8)
    assert (constant.mean, constant.low, constant.high) == (0.5, 0.5, 0.5)
    single = mean_interval([1.0])
    assert (single.mean, single.low, single.high) == (1.0, None, None)
    with pytest.raises(ValueError, match="no scores"):
        mean_interval([])


def test_an_arm_pools_the_rollouts_of_its_seeds() -> None:
    pooled = arm_interval(comparekit.arm("sao", {0: passes(11, 24), 1: passes(12, 24)}))
    assert pooled == mean_interval(passes(23))
    with pytest.raises(RunError, match="arm sao has no scored rollout"):
        arm_interval(comparekit.arm("sao", {0: []}))


# fewer than three seeds


def test_one_seed_is_tested_by_rollout() -> None:
    found = difference(comparekit.arm("sao", {0: passes(23)}), comparekit.arm("base", {0: passes(20)}))
    assert found.name == "sao − base"
    assert found.mean == pytest.approx(3 / 48)
    assert found.p == pytest.approx(0.538, abs=5e-4)
    assert found.effect_name == "Cohen's h"
    assert found.effect is not None
    assert found.effect == pytest.approx(2 * (math.asin((23 / 48) ** 0.5) - math.asin((20 / 48) ** 0.5)))
    # n per arm = 2 ((z(0.975) + z(0.8)) / h)²
    assert found.needed_rollouts == math.ceil(2 * ((1.959964 + 0.841621) / found.effect) ** 2) == 993
    assert found.target == pytest.approx(3 / 48)
    assert (found.unit, found.needed_seeds, found.separated, found.runs_differ) == ("rollout", None, False, False)
    # Nearly the normal interval of two independent proportions, within tasks.
    assert (found.low, found.high) == (pytest.approx(-0.135, abs=0.02), pytest.approx(0.26, abs=0.02))
    assert found.note == "one run per arm says nothing of the spread between runs"


def test_one_seed_never_separates_arms() -> None:
    found = difference(comparekit.arm("sao", {0: passes(45)}), comparekit.arm("base", {0: passes(3)}))
    assert found.p < 1e-9 and found.low > 0
    assert found.runs_differ and not found.separated


def test_partial_credit_is_tested_by_welch() -> None:
    rng = np.random.default_rng(1)
    a, b = rng.random(40), rng.random(40) * 0.8
    found = difference(comparekit.arm("sao", {0: list(a)}), comparekit.arm("base", {0: list(b)}))
    assert found.p == pytest.approx(stats.ttest_ind(a, b, equal_var=False).pvalue)
    spread = math.sqrt((a.var(ddof=1) + b.var(ddof=1)) / 2)
    assert (found.effect_name, found.effect) == ("Cohen's d", pytest.approx((a.mean() - b.mean()) / spread))
    assert found.method.startswith("Welch t")


@pytest.mark.parametrize(
    ("a", "b", "p"),
    [
        (passes(0), passes(0), 1.0),
        (passes(48), passes(48), 1.0),
        ([0.5] * 8, [0.5] * 8, 1.0),
        ([0.3], [0.4], 1.0),
        # 2 of the 20 ways to label three and three scores
        ([0.5] * 3, [0.7] * 3, 0.1),
        ([1.0], [0.0], 0.15730),
    ],
)
def test_scores_without_spread_are_never_nan(a: list[float], b: list[float], p: float) -> None:
    found = difference(comparekit.arm("sao", {0: a}), comparekit.arm("base", {0: b}))
    assert found.p == pytest.approx(p, abs=1e-4)
    assert not found.separated
    assert_finite(found)


def test_the_test_without_spread_can_tell_many_scores_apart() -> None:
    assert welch(np.full(20, 0.5), np.full(20, 0.7), np.random.default_rng(0)) == pytest.approx(2e-4, abs=1e-5)


@pytest.mark.filterwarnings("error")
def test_a_sample_without_spread_beside_one_with_it_is_no_cause_for_a_warning() -> None:
    solved, mixed = np.full(20, 1.0), np.linspace(0.0, 1.0, 20)
    standard_error = mixed.std(ddof=1) / math.sqrt(20)
    expected = 2 * stats.t.sf(0.5 / standard_error, df=19)
    assert welch(solved, mixed, np.random.default_rng(0)) == pytest.approx(expected, rel=1e-12)


# three seeds and more


def test_three_seeds_are_tested_by_seed() -> None:
    # d = 0.3, 0.1, 0.2: mean 0.2, sd 0.1, t = 0.2 / (0.1/√3) = 3.4641, two-sided p(2) = 0.0742
    found = difference(by_seed("sao", 0.7, 0.5, 0.8), by_seed("base", 0.4, 0.4, 0.6))
    assert (found.mean, found.effect) == (pytest.approx(0.2), pytest.approx(2.0))
    assert found.p == pytest.approx(0.07418, abs=1e-5)
    assert (found.unit, found.seeds, found.rollouts, found.effect_name) == ("seed", 3, 120, "Cohen's d_z")
    assert found.low > 0 and not found.separated  # both must agree
    # n with 80 % power at d_z = 2, from the noncentral t: 4.22 pairs
    assert (found.needed_seeds, found.needed_rollouts, found.target) == (5, 5 * 40, pytest.approx(0.2))
    assert found.note is None


def test_steady_seeds_are_separated() -> None:
    found = difference(by_seed("sao", 0.7, 0.6, 0.8, 0.7), by_seed("base", 0.4, 0.3, 0.4, 0.4))
    assert found.p < 0.01 and found.low > 0.25 and found.separated
    swapped = difference(by_seed("base", 0.4, 0.3, 0.4, 0.4), by_seed("sao", 0.7, 0.6, 0.8, 0.7))
    assert swapped.separated and swapped.mean == -found.mean and swapped.high < -0.25


def test_a_small_p_alone_does_not_separate() -> None:
    # d = 0.10, 0.11, 0.12, by chance: the two tasks of each seed differ by 1.6, and that is what the bootstrap sees.
    runs = {seed: {"up": [0.9 + d], "down": [-0.7 + d]} for seed, d in enumerate((0.0, 0.01, 0.02))}
    found = difference(arm("sao", runs), arm("base", {seed: {"up": [0.0], "down": [0.0]} for seed in range(3)}))
    assert found.p < 0.01 and found.low < 0 < found.high and not found.separated


def test_tasks_weigh_equally_and_runs_pair_by_seed() -> None:
    a = arm("sao", {seed: {"many": passes(0, 8), "few": [1.0], "own": [1.0]} for seed in (2, 1, 0, 9)})
    b = arm("base", {seed: {"many": [0.0], "few": [seed / 4]} for seed in range(3)})
    # (0 + 1 − seed/4)/2 for seeds 0, 1, 2; neither the task nor the seed that only one arm has
    found = difference(a, b)
    assert found.mean == pytest.approx((0.5 + 0.375 + 0.25) / 3)
    assert found.seeds == 3
    with pytest.raises(RunError, match="no scored task in common"):
        difference(a, arm("base", {0: {"other": [1.0]}}))


def test_all_zero_differences() -> None:
    found = difference(by_seed("sao", 0.5, 0.6, 0.4), by_seed("sao#2", 0.5, 0.6, 0.4))
    assert (found.mean, found.low, found.high, found.p, found.effect) == (0.0, 0.0, 0.0, 1.0, 0.0)
    assert not found.separated and found.needed_rollouts is None
    assert_finite(found)


def test_one_difference_in_every_seed_is_tested_by_rollout() -> None:
    small = difference(by_seed("sao", 0.5, 0.6, 0.4), by_seed("base", 0.4, 0.5, 0.3))
    assert small.unit == "rollout" and small.note == "every seed has the same difference, so the rollouts were tested"
    assert small.p == pytest.approx(0.11947, abs=1e-5) and not small.separated  # 60 against 48 of 120: z = 1.5570
    large = difference(by_seed("sao", 1.0, 1.0, 1.0), by_seed("base", 0.0, 0.0, 0.0))
    assert large.separated and (large.low, large.high) == (1.0, 1.0)
    assert_finite(large)


def test_same_numbers_again() -> None:
    a, b = by_seed("sao", 0.7, 0.5, 0.8), by_seed("base", 0.4, 0.4, 0.6)
    assert difference(a, b) == difference(a, b)
    assert difference(a, b, seed=1).p == difference(a, b).p


def held_out(label: str, rates: Mapping[int, Sequence[tuple[int, float, float]]]) -> ArmResult:
    """Evaluations of 40 samples by seed: step, temperature, passed."""
    made = comparekit.arm(label, {seed: [0.0] for seed in rates})
    evaluations = {
        seed: tuple(HeldOut(step=step, temperature=heat, samples=40, passed=passed) for step, heat, passed in found)
        for seed, found in rates.items()
    }
    return replace(made, runs=tuple(replace(run, held_out=evaluations[run.seed]) for run in made.runs))


def test_held_out_is_the_last_evaluation_of_its_temperature() -> None:
    base = held_out("base", {seed: [(0, 1.0, 20.0), (0, 0.0, 24.0)] for seed in range(3)})
    sao = held_out("sao", {seed: [(48, 1.0, 28.0 + 2 * seed), (8, 1.0, 0.0), (0, 0.0, 24.0)] for seed in range(3)})
    found = held_out_difference(sao, base, temperature=1.0)
    assert found is not None
    assert found.name == "sao − base, held-out at temperature 1"
    # 0.2, 0.25, 0.3: t = 0.25 / (0.05/√3) = 8.660
    assert (found.mean, found.p) == (pytest.approx(0.25), pytest.approx(0.01307, abs=1e-5))
    assert found.separated and (found.counted, found.rollouts) == ("held-out samples", 120)
    # An evaluation before training says nothing of a trained arm.
    assert held_out_difference(sao, base, temperature=0.0) is None


def test_held_out_of_one_seed_keeps_its_sum() -> None:
    found = held_out_difference(
        held_out("sao", {0: [(9, 1.0, 30.5)]}), held_out("base", {0: [(0, 1.0, 20.0)]}), temperature=1.0
    )
    assert found is not None
    assert (found.mean, found.unit) == (pytest.approx(10.5 / 40), "rollout")
    assert found.p == pytest.approx(0.014, abs=2e-3)


# the bootstrap


def test_draws_over_seeds_vary_as_the_t_test_says() -> None:
    rng = np.random.default_rng(3)
    tasks = [mean + 0.1 * rng.standard_normal(8) for mean in (0.1, 0.4, 0.2, 0.9)]
    draws = seed_means(tasks, np.random.default_rng(0), 40_000)
    per_seed = np.array([values.mean() for values in tasks])
    assert draws.mean() == pytest.approx(per_seed.mean(), abs=4e-3)
    assert draws.std() == pytest.approx(per_seed.std(ddof=1) / 2, rel=0.02)


def test_equal_seeds_leave_the_noise_of_tasks() -> None:
    tasks = [np.array([0.0, 1.0, 0.0, 1.0])] * 3
    # sd 0.5 of a task, 12 of them
    assert seed_means(tasks, np.random.default_rng(0), 40_000).std() == pytest.approx(0.5 / 12**0.5, rel=0.02)


def test_draws_within_tasks_leave_out_what_tasks_differ_by() -> None:
    easy, hard = np.array([1.0, 1.0, 1.0, 0.0]), np.array([0.0, 0.0, 1.0, 0.0])
    draws = stratified_means([easy, hard], np.random.default_rng(0), 40_000)
    # each mean of 4 has variance s²/4 = 0.25/4, and half of the weight
    assert draws.std() == pytest.approx(math.sqrt(2 * 0.25 / 4) / 2, rel=0.02)
    assert draws.mean() == pytest.approx(0.5, abs=5e-3)


def test_tasks_of_one_rollout_are_drawn_together() -> None:
    draws = stratified_means([np.array([score]) for score in passes(10, 20)], np.random.default_rng(0), 40_000)
    assert draws.std() == pytest.approx(math.sqrt(0.25 / 19), rel=0.02)


# power


def test_budgets() -> None:
    assert seeds_to_show(0.5, least=3) == 34  # a textbook's paired t-test
    assert rollouts_to_show_d(0.5) == 64  # and that of two samples
    assert rollouts_to_show_rates(0.5, 0.1) == 388
    # Where the solver has no answer, the least there is.
    assert seeds_to_show(50.0, least=3) == 3
    assert rollouts_to_show_d(50.0) == 3
    assert rollouts_to_show_rates(0.0, 1.0) == 3


def test_a_difference_near_zero_asks_for_a_tenth() -> None:
    found = difference(comparekit.arm("sao", {0: passes(24)}), comparekit.arm("base", {0: passes(24)}))
    assert (found.target, found.needed_rollouts) == (0.1, 388)
    # A tenth above 1 is no rate: it is taken below.
    top = difference(comparekit.arm("sao", {0: passes(48)}), comparekit.arm("base", {0: passes(48)}))
    assert top.needed_rollouts == rollouts_to_show_rates(0.9, 0.1)


# many comparisons

RATES = np.array([0.2, 0.35, 0.45, 0.55, 0.65, 0.8])


def simulated(
    rng: np.random.Generator, label: str, *, seeds: int, rollouts: int, shift: float, spread: float
) -> ArmResult:
    """An arm of six tasks whose runs differ: each run's rates are RATES + shift + N(0, spread)."""
    runs = {}
    for seed in range(seeds):
        rates = np.clip(RATES + shift + rng.normal(0, spread), 0, 1)
        scores = (rng.random((rollouts // RATES.size, RATES.size)) < rates).astype(float)
        runs[seed] = {f"t{task}": list(scores[:, task]) for task in range(RATES.size)}
    return arm(label, runs)


def found_in(comparisons: int, *, seeds: int, rollouts: int = 48, gap: float, spread: float) -> tuple[float, float]:
    """Shares of comparisons whose runs differ, and whose arms are separated."""
    rng = np.random.default_rng(seeds)
    found = []
    for _ in range(comparisons):
        a = simulated(rng, "a", seeds=seeds, rollouts=rollouts, shift=gap / 2, spread=spread)
        b = simulated(rng, "b", seeds=seeds, rollouts=rollouts, shift=-gap / 2, spread=spread)
        one = difference(a, b, resamples=200)
        found.append((one.runs_differ, one.separated))
    differ, separated = np.mean(found, axis=0)
    return float(differ), float(separated)


# Of 400 comparisons at a true 5 %, fewer than 7.2 % are found 97.5 % of the time: 5 % + 2 √(0.05 · 0.95 / 400).
COMPARISONS, ALLOWED = 400, 0.072


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [1, 3, 5])
def test_identical_arms_are_separated_in_at_most_one_of_twenty(seeds: int) -> None:
    differ, separated = found_in(COMPARISONS, seeds=seeds, gap=0.0, spread=0.1)
    assert separated <= ALLOWED
    if seeds == 1:
        # Why one run never separates: its rollouts would.
        assert differ > 0.15


@pytest.mark.slow
def test_identical_runs_differ_in_at_most_one_of_twenty() -> None:
    differ, _ = found_in(COMPARISONS, seeds=1, gap=0.0, spread=0.0)
    assert differ <= ALLOWED


# Of 200 comparisons at a true 80 %: 80 % ± 2 √(0.8 · 0.2 / 200), and as much again for the normal approximation below.
PROMISED = pytest.approx(0.8, abs=0.1)


@pytest.mark.slow
def test_the_seeds_asked_for_show_the_difference() -> None:
    gap, spread, rollouts = 0.15, 0.06, 48
    deviation = math.sqrt(2 * (spread**2 + np.mean(RATES * (1 - RATES)) / rollouts))
    seeds = seeds_to_show(gap / deviation, least=3)
    assert seeds == 8
    assert found_in(200, seeds=seeds, gap=gap, spread=spread)[1] == PROMISED


def test_the_rollouts_asked_for_show_the_difference() -> None:
    rollouts = rollouts_to_show_rates(0.425, 0.15)
    assert rollouts == 174
    assert found_in(200, seeds=1, rollouts=rollouts, gap=0.15, spread=0.0)[0] == PROMISED
