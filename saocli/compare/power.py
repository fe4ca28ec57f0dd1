"""How large a budget would show a difference: 80 % power of two-sided tests at 5 %."""

from __future__ import annotations

import math

import numpy as np
from statsmodels.stats.power import NormalIndPower, TTestIndPower, TTestPower
from statsmodels.stats.proportion import proportion_effectsize

ALPHA = 0.05  # of every test and interval of a comparison
POWER = 0.8
# Effects beyond which the solvers give NaN; there, the least budget suffices.
LARGEST_H = 2.8
LARGEST_D = 5.0


def seeds_to_show(d_z: float, *, least: int) -> int:
    """Pairs of runs for a paired t-test, where the runs' differences are `d_z` standard deviations from 0."""
    return max(least, _solve(TTestPower(), min(abs(d_z), LARGEST_D)))


def rollouts_to_show_d(d: float) -> int:
    """Independent rollouts per arm for a t-test between means that are `d` standard deviations apart."""
    return _solve(TTestIndPower(), min(abs(d), LARGEST_D))


def rollouts_to_show_rates(rate: float, gap: float) -> int:
    """Independent rollouts per arm for a z-test between the rates `rate` and `rate + gap`, lowered to end at 1."""
    h = float(proportion_effectsize(min(1.0, rate + gap), min(rate, max(0.0, 1.0 - gap))))
    return _solve(NormalIndPower(), min(abs(h), LARGEST_H))


def _solve(test: TTestPower | TTestIndPower | NormalIndPower, effect: float) -> int:
    return math.ceil(float(np.squeeze(test.solve_power(effect, power=POWER, alpha=ALPHA))))
