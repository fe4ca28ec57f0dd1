"""Estimates of arms without a critic: one advantage per rollout."""

from __future__ import annotations

from collections.abc import Sequence

from saocli.algo.reduce import whiten
from saocli.arms.base import Estimate, Rollout


def constant_estimates(advantages: Sequence[float], rollouts: Sequence[Rollout], *, whitened: bool) -> list[Estimate]:
    """Each rollout's advantage at every one of its action tokens, 0 at observation tokens; no critic targets.

    `advantages`: B. `whitened`: over the action tokens of the batch, see `whiten`.
    """
    masks = [rollout.action_mask.bool() for rollout in rollouts]
    spread = [mask.double() * advantage for advantage, mask in zip(advantages, masks, strict=True)]
    return [Estimate(advantage, None) for advantage in (whiten(spread, masks) if whitened else spread)]
