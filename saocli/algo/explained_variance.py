"""How much of the returns' variance the critic explains: 1 − Var(return − V)/Var(return)."""

from __future__ import annotations

from torch import Tensor

from saocli.algo.reduce import same_shape
from saocli.types import RolloutMoments


def explained_variance(returns: Tensor, values: Tensor) -> float | None:
    """Over n samples, [n] each, in float64; None where undefined (fewer than two samples, or constant returns)."""
    same_shape(returns=returns, values=values)
    r, v = returns.detach().double(), values.detach().double()
    if r.numel() < 2 or bool((r == r[0]).all()):
        return None
    return 1.0 - float((r - v).var() / r.var())


def rollout_moments(returns: Tensor, values: Tensor, action_mask: Tensor) -> RolloutMoments:
    """One rollout's sums over action tokens, [T] each; enough to pool explained variance over rollouts."""
    same_shape(returns=returns, values=values, action_mask=action_mask)
    action = action_mask.bool()
    r = returns.detach()[action].double()
    residual = r - values.detach()[action].double()
    return RolloutMoments(
        count=r.numel(),
        return_sum=float(r.sum()),
        return_sq=float(r.square().sum()),
        residual_sum=float(residual.sum()),
        residual_sq=float(residual.square().sum()),
    )
