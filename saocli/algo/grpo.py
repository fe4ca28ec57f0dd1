"""Group-relative advantages (GRPO, arXiv 2402.03300; without the division: Dr. GRPO, arXiv 2503.20783)."""

from __future__ import annotations

from torch import Tensor

from saocli.algo.reduce import standardize


def group_advantages(rewards: Tensor, *, normalize_std: bool) -> Tensor:
    """A = (R − mean)/(std + 1e-6), n−1 standard deviation, or R − mean; [G] → [G] float64, one per rollout of a group.

    A uniform group, and a group of one, is exactly 0.
    """
    r = rewards.detach().double()
    if normalize_std:
        return standardize(r)
    if r.numel() == 0 or bool((r == r[0]).all()):
        return r * 0.0
    return r - r.mean()
