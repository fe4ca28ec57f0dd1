"""Whether two samples of independent scores have different means; never NaN, however constant they are."""

from __future__ import annotations

import math

import numpy as np
from scipy import stats
from statsmodels.stats.proportion import proportions_ztest

from saocli.compare.resample import Scores

EXACT = 1e-12  # means and spreads that are closer are equal


def is_binary(scores: Scores) -> bool:
    """Whether every score is 0 or 1."""
    return bool(np.isin(scores, (0.0, 1.0)).all())


def two_proportions(a: Scores, b: Scores) -> float:
    """Two-sided p of the z-test with pooled variance, for scores of 0 and 1."""
    if np.ptp(np.concatenate([a, b])) == 0:
        return 1.0  # all passed or none did: the pooled variance is 0
    return float(proportions_ztest([a.sum(), b.sum()], [a.size, b.size])[1])


def welch(a: Scores, b: Scores, rng: np.random.Generator) -> float:
    """Two-sided p of Welch's t-test; of a permutation test drawn by `rng` where no sample has the spread that t needs.

    1 for a single score, which nothing can be told from.
    """
    if min(a.size, b.size) < 2:
        return 1.0
    if np.ptp(a) == np.ptp(b) == 0:
        return float(stats.permutation_test((a, b), _gap, vectorized=True, rng=rng).pvalue)
    # From the moments: given the scores, scipy warns of each sample that has no spread, which is no fault here.
    moments = [moment for one in (a, b) for moment in (one.mean(), one.std(ddof=1), one.size)]
    return float(stats.ttest_ind_from_stats(*moments, equal_var=False).pvalue)


def pooled_spread(a: Scores, b: Scores) -> float:
    """Standard deviation within the samples; 0 where they show none."""
    freedom = a.size + b.size - 2
    spread = math.sqrt((a.var() * a.size + b.var() * b.size) / freedom) if freedom else 0.0
    return spread if spread > EXACT else 0.0


def _gap(a: Scores, b: Scores, axis: int) -> Scores:
    return np.asarray(a.mean(axis=axis) - b.mean(axis=axis))
