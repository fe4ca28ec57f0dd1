"""Bootstrap draws of a mean whose scores lie in groups: of seeds and tasks, or of runs and tasks.

numpy's draws: scipy.stats.bootstrap resamples whole samples along one axis, with neither levels nor strata.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Scores = NDArray[np.float64]


def seed_means(by_seed: Sequence[Scores], rng: np.random.Generator, resamples: int) -> Scores:
    """[resamples] means over seeds drawn with replacement, and within each over its tasks drawn with replacement.

    Seeds' means differ by the noise of their tasks already, so drawing both would count it twice: the means are first
    drawn together (the shrinkage of Davison & Hinkley 1997, §3.8) until the draws' variance is the squared standard
    error of the t-test, s²/S. It is never less than the tasks' noise alone, however equal the seeds came out.
    """
    means = np.array([tasks.mean() for tasks in by_seed])
    between = float(((means - means.mean()) ** 2).sum())
    within = sum(float(tasks.var()) / tasks.size for tasks in by_seed)
    scale = math.sqrt(max(0.0, means.size / (means.size - 1) - within / between)) if between > 0 else 0.0
    centres = means.mean() + scale * (means - means.mean())
    drawn = rng.integers(means.size, size=(resamples, means.size))
    total = np.zeros(resamples)
    for slot in drawn.T:
        for seed, tasks in enumerate(by_seed):
            rows = np.flatnonzero(slot == seed)
            noise = rng.choice(tasks - tasks.mean(), size=(rows.size, tasks.size)).mean(axis=1)
            total[rows] += centres[seed] + noise
    return total / means.size


def stratified_means(strata: Sequence[Scores], rng: np.random.Generator, resamples: int) -> Scores:
    """[resamples] means of all scores, each stratum's drawn with replacement.

    n − 1 of a stratum's n are drawn, which makes the variance right for small ones (Rao & Wu 1988). Strata of one
    score show no spread of their own and are drawn from together.
    """
    groups = [scores for scores in strata if scores.size > 1]
    if single := [scores for scores in strata if scores.size == 1]:
        groups.append(np.concatenate(single))
    total = np.zeros(resamples)
    for scores in groups:
        total += scores.size * rng.choice(scores, size=(resamples, max(1, scores.size - 1))).mean(axis=1)
    return total / sum(scores.size for scores in groups)
