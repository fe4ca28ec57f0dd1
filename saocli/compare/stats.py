"""What the scores of two arms allow to say: intervals, differences, and the budget that would show them.

Training makes the rollouts of one run depend on each other, so between arms the unit of replication is the run: from
three seeds on, they are tested by seed. With fewer there is no spread between runs to test against and the rollouts
are the unit. That speaks of these runs, not of the arms, which are then never called separated: two identical arms of
48 rollouts, whose runs' true means have a standard deviation of 0.1, would be in one comparison of five.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats
from statsmodels.stats.proportion import proportion_confint, proportion_effectsize

from saocli.compare.power import ALPHA, rollouts_to_show_d, rollouts_to_show_rates, seeds_to_show
from saocli.compare.resample import Scores, seed_means, stratified_means
from saocli.compare.results import ArmResult, HeldOut, RunResult
from saocli.compare.two_samples import EXACT, is_binary, pooled_spread, two_proportions, welch
from saocli.errors import RunError

RESAMPLES = 9999
SEED_LEVEL = 3  # seeds from which on a seed is the unit
SMALL = 0.02  # below it a difference is worth no budget; the one that shows TARGET is given instead
TARGET = 0.1


@dataclass(frozen=True, kw_only=True, slots=True)
class Interval:
    """A mean and its 95 % interval; no bounds where a single score shows no spread."""

    mean: float
    low: float | None
    high: float | None
    method: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """Mean of one arm less that of another, and whether the budget shows that it is not 0."""

    name: str  # `sao − base`
    mean: float
    low: float  # bootstrap, 95 %
    high: float
    p: float  # two-sided
    effect: float | None  # None where the scores have no spread
    effect_name: str
    method: str
    unit: str  # seed | rollout
    seeds: int
    counted: str  # rollouts | held-out samples
    rollouts: int  # per arm and over all seeds; the smaller arm's
    separated: bool  # `runs_differ`, in seeds enough to know the spread between runs
    needed_rollouts: int | None  # per arm, to show `target` with 80 % power; None where the scores have no spread
    needed_seeds: int | None  # runs per arm that these make; None where the unit is a rollout
    target: float  # size of the difference, or TARGET where that is below SMALL
    note: str | None  # what the numbers cannot say

    @property
    def runs_differ(self) -> bool:
        """p < 0.05, and 0 is outside the interval: true of these runs' rollouts, whatever other runs would show."""
        return _shown(self.p, self.low, self.high)


@dataclass(frozen=True, slots=True)
class _Pair:
    """One seed of two arms: scores by task, the same tasks in both."""

    a: Mapping[str, Scores]
    b: Mapping[str, Scores]

    def by_task(self) -> Scores:
        """Difference of the mean scores of each task."""
        return np.array([self.a[task].mean() - self.b[task].mean() for task in self.a])


@dataclass(frozen=True, kw_only=True, slots=True)
class _Found:
    """What a test finds, whatever its unit."""

    mean: float
    draws: Scores  # of the mean, bootstrap
    p: float
    effect: float | None
    effect_name: str
    method: str
    needed_rollouts: int | None
    needed_seeds: int | None = None


def mean_interval(scores: Sequence[float]) -> Interval:
    """Mean and 95 % interval: Wilson's where every score is 0 or 1, else Student's t.

    t rather than BCa: both hold their level from some tens of scores on, with fewer BCa falls short, and t needs no
    draws. Its bounds may pass those of the score. Constant partial credit gets an interval of no width. Raises
    ValueError where there is no score.
    """
    values = np.asarray(scores, dtype=np.float64)
    if values.size == 0:
        raise ValueError("no scores have no mean")
    binary = is_binary(values)
    mean, method = float(values.mean()), "Wilson" if binary else "t"
    if values.size == 1:
        return Interval(mean=mean, low=None, high=None, method=method)
    if binary:
        low, high = proportion_confint(values.sum(), values.size, alpha=ALPHA, method="wilson")
    elif np.ptp(values) == 0:
        low, high = mean, mean
    else:
        low, high = stats.t.interval(1 - ALPHA, values.size - 1, loc=mean, scale=stats.sem(values))
    return Interval(mean=mean, low=float(low), high=float(high), method=method)


def arm_interval(arm: ArmResult) -> Interval:
    """`mean_interval` of the rollouts of all seeds: the noise of sampling rollouts, without the spread between runs.

    Raises RunError for an arm without a scored rollout.
    """
    rewards = [reward for run in arm.runs for reward in run.rewards]
    if not rewards:
        paths = ", ".join(run.path for run in arm.runs) or "it has no run"
        raise RunError(f"arm {arm.label} has no scored rollout", fix=f"read the logs of its runs: {paths}")
    return mean_interval(rewards)


def difference(a: ArmResult, b: ArmResult, *, seed: int = 0, resamples: int = RESAMPLES) -> Difference:
    """Mean reward of `a` less that of `b`, over the seeds and tasks that both have.

    From three seeds on: mean over seeds of the mean over tasks, paired t-test over seeds, Cohen's d_z, bootstrap over
    seeds and tasks. With fewer, or where all seeds have one and the same difference and so no spread to test against:
    mean over rollouts, two-proportion z-test and Cohen's h (Welch's t and Cohen's d unless every score is 0 or 1),
    bootstrap over rollouts within runs and tasks. `seed` is the bootstrap's. Raises RunError where the arms have no
    task of any seed in common.
    """
    runs = {run.seed: run for run in b.runs}
    pairs = [pair for run in a.runs if run.seed in runs and (pair := _pair(run, runs[run.seed]))]
    if not pairs:
        raise RunError(
            f"arms {a.label} and {b.label} have no scored task in common on any seed", fix="read the logs of their runs"
        )
    return _compare(f"{a.label} − {b.label}", "rollouts", pairs, np.random.default_rng(seed), resamples)


def held_out_difference(
    a: ArmResult, b: ArmResult, *, temperature: float, seed: int = 0, resamples: int = RESAMPLES
) -> Difference | None:
    """As `difference`, of the pass rates of each seed's last evaluation at `temperature`.

    Evaluations of an arm that trains count from step 1 on. None where no seed has both arms'.
    """
    evaluations = {run.seed: _last_evaluation(b, run, temperature) for run in b.runs}
    pairs = [
        _Pair({"": _as_scores(of_a)}, {"": _as_scores(of_b)})
        for run in a.runs
        if (of_a := _last_evaluation(a, run, temperature)) and (of_b := evaluations.get(run.seed))
    ]
    if not pairs:
        return None
    name = f"{a.label} − {b.label}, held-out at temperature {temperature:g}"
    return _compare(name, "held-out samples", pairs, np.random.default_rng(seed), resamples)


def _pair(a: RunResult, b: RunResult) -> _Pair | None:
    of_a, of_b = _by_task(a), _by_task(b)
    common = sorted(of_a.keys() & of_b.keys())
    return _Pair({task: of_a[task] for task in common}, {task: of_b[task] for task in common}) if common else None


def _by_task(run: RunResult) -> dict[str, Scores]:
    scores: defaultdict[str, list[float]] = defaultdict(list)
    for rollout in run.rollouts:
        scores[rollout.task].append(rollout.score)
    return {task: np.array(values, dtype=np.float64) for task, values in scores.items()}


def _last_evaluation(arm: ArmResult, run: RunResult, temperature: float) -> HeldOut | None:
    made = [
        held
        for held in run.held_out
        if held.temperature == temperature and held.samples and (held.step > 0 or not arm.trains)
    ]
    return max(made, key=lambda held: held.step, default=None)


def _as_scores(held: HeldOut) -> Scores:
    """Scores in [0, 1] that sum to `passed`; of all such, those of the largest variance."""
    return np.clip(held.passed - np.arange(held.samples), 0.0, 1.0)


def _compare(name: str, counted: str, pairs: Sequence[_Pair], rng: np.random.Generator, resamples: int) -> Difference:
    strata_a = [scores for pair in pairs for scores in pair.a.values()]
    strata_b = [scores for pair in pairs for scores in pair.b.values()]
    by_seed = [pair.by_task() for pair in pairs]
    rollouts = min(sum(map(len, strata_a)), sum(map(len, strata_b)))
    if seed_level := len(pairs) >= SEED_LEVEL and not _same_but_not_zero(by_seed):
        found = _of_seeds(by_seed, math.ceil(rollouts / len(pairs)), rng, resamples)
    else:
        found = _of_rollouts(strata_a, strata_b, rng, resamples)
    low, high = (float(bound) for bound in np.quantile(found.draws, [ALPHA / 2, 1 - ALPHA / 2]))
    return Difference(
        name=name,
        mean=found.mean,
        low=low,
        high=high,
        p=found.p,
        effect=found.effect,
        effect_name=found.effect_name,
        method=found.method,
        unit="seed" if seed_level else "rollout",
        seeds=len(pairs),
        counted=counted,
        rollouts=rollouts,
        separated=len(pairs) >= SEED_LEVEL and _shown(found.p, low, high),
        needed_rollouts=found.needed_rollouts,
        needed_seeds=found.needed_seeds,
        target=_target(found.mean),
        note=None if seed_level else _caveat(len(pairs)),
    )


def _same_but_not_zero(by_seed: Sequence[Scores]) -> bool:
    means = [tasks.mean() for tasks in by_seed]
    return bool(np.ptp(means) < EXACT < abs(np.mean(means)))


def _shown(p: float, low: float, high: float) -> bool:
    return p < ALPHA and (low > 0 or high < 0)


def _caveat(seeds: int) -> str:
    return {
        1: "one run per arm says nothing of the spread between runs",
        2: "two runs per arm say little of the spread between runs",
    }.get(seeds, "every seed has the same difference, so the rollouts were tested")


def _of_seeds(by_seed: Sequence[Scores], rollouts_per_seed: int, rng: np.random.Generator, resamples: int) -> _Found:
    per_seed = np.array([tasks.mean() for tasks in by_seed])
    mean, spread = float(per_seed.mean()), float(per_seed.std(ddof=1))
    if equal := spread < EXACT:  # and 0: equal differences of another size are tested by rollout
        mean, needed_seeds = 0.0, None
    else:
        needed_seeds = seeds_to_show(_target(mean) / spread, least=SEED_LEVEL)
    return _Found(
        mean=mean,
        draws=seed_means(by_seed, rng, resamples),
        # Of the pairs' differences: the paired test.
        p=1.0 if equal else float(stats.ttest_1samp(per_seed, 0.0).pvalue),
        effect=0.0 if equal else mean / spread,
        effect_name="Cohen's d_z",
        method=f"paired t over {len(by_seed)} seeds, bootstrap over seeds and tasks",
        needed_rollouts=needed_seeds and needed_seeds * rollouts_per_seed,
        needed_seeds=needed_seeds,
    )


def _of_rollouts(
    strata_a: Sequence[Scores], strata_b: Sequence[Scores], rng: np.random.Generator, resamples: int
) -> _Found:
    a, b = np.concatenate(strata_a), np.concatenate(strata_b)
    mean = float(a.mean() - b.mean())
    draws = stratified_means(strata_a, rng, resamples) - stratified_means(strata_b, rng, resamples)
    if is_binary(a) and is_binary(b):
        return _Found(
            mean=mean,
            draws=draws,
            p=two_proportions(a, b),
            effect=float(proportion_effectsize(a.mean(), b.mean())),
            effect_name="Cohen's h",
            method="two-proportion z, bootstrap over rollouts within tasks",
            needed_rollouts=rollouts_to_show_rates(float(min(a.mean(), b.mean())), _target(mean)),
        )
    spread = pooled_spread(a, b)
    return _Found(
        mean=mean,
        draws=draws,
        p=welch(a, b, rng),
        effect=mean / spread if spread else None,
        effect_name="Cohen's d",
        method="Welch t, bootstrap over rollouts within tasks",
        needed_rollouts=rollouts_to_show_d(_target(mean) / spread) if spread else None,
    )


def _target(mean: float) -> float:
    return abs(mean) if abs(mean) >= SMALL else TARGET
