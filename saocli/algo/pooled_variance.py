"""Explained variance over many rollouts from their sums alone; plain Python, for processes without torch."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence

from saocli.types import RolloutMoments

# Sums of squares carry relative rounding of about 1e-16 per term; variance below this share of them is rounding.
ROUNDING = 1e-12


def pooled_explained_variance(moments: Sequence[RolloutMoments]) -> float | None:
    """1 − Var(return − V)/Var(return) over the action tokens of all rollouts; None for one sample or constant returns.

    Variance is put together from what lies within and between rollouts (Chan et al. 1983): with γ = 1 a rollout's
    returns are all its score, and Σx² − (Σx)²/n over everything would cancel.
    """
    parts = [m for m in moments if m.count > 0]
    if sum(m.count for m in parts) < 2:
        return None
    returns = _deviation([(m.count, m.return_sum, m.return_sq) for m in parts])
    # Below the smallest normal number squares have lost their digits.
    if returns <= max(ROUNDING * math.fsum(m.return_sq for m in parts), sys.float_info.min):
        return None
    return 1.0 - _deviation([(m.count, m.residual_sum, m.residual_sq) for m in parts]) / returns


def _deviation(parts: Sequence[tuple[int, float, float]]) -> float:
    """Σ (x − mean)² over everything, from (n, Σx, Σx²) of each part."""
    mean = math.fsum(total for _, total, _ in parts) / sum(n for n, _, _ in parts)
    within = math.fsum(max(0.0, square - total * total / n) for n, total, square in parts)
    between = math.fsum(n * (total / n - mean) ** 2 for n, total, _ in parts)
    return within + between
