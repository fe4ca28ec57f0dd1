"""Direct double-sided importance sampling (SAO, arXiv 2607.07508 §3.1)."""

from __future__ import annotations

import torch
from torch import Tensor

from saocli.algo.band import bounds
from saocli.algo.ratio_stats import ratio_tally
from saocli.algo.reduce import Tally, divisor, same_shape


@torch.no_grad()
def dis_weight(log_ratio: Tensor, *, eps_low: float, eps_high: float) -> Tensor:
    """f(r) = r where 1 − eps_low < r < 1 + eps_high, both strict, else 0; r = exp(log_ratio). Shape kept, detached.

    A mask, not a clip, and blind to the advantage's sign. exp may overflow to inf and a −inf − −inf gap is NaN: neither
    is inside the band.
    """
    low, high = bounds(eps_low, eps_high)
    ratio = log_ratio.exp()
    return torch.where((ratio > low) & (ratio < high), ratio, torch.zeros_like(ratio))


def dis_loss(
    logp: Tensor,
    rollout_logp: Tensor,
    advantage: Tensor,
    action_mask: Tensor,
    *,
    eps_low: float,
    eps_high: float,
    denominator: float,
) -> tuple[Tensor, Tally]:
    """−Σ_t m[t]·stopgrad(f(r_t))·A_t·logp_t / denominator, with r = exp(logp − rollout_logp) (arXiv 2607.07508 §3.1).

    `logp`, `rollout_logp` (nats, at the sampling temperature), `advantage`, `action_mask`: one shape, [T] or [b, T].
    `denominator`: action tokens of the whole optimizer batch, masked ones included, so that contributions of
    micro-batches and ranks add up. Gradient flows through `logp` alone; weight and advantage are detached. What stands
    at masked positions, NaN included, reaches neither loss nor gradient. Computed in float64.

    Returns the scalar contribution to the loss and the tally for `ratio_metrics`. Raises ConfigError for a bad band,
    ValueError when shapes differ.
    """
    same_shape(logp=logp, rollout_logp=rollout_logp, advantage=advantage, action_mask=action_mask)
    action = action_mask.bool()
    log_ratio = logp.detach().double() - rollout_logp.detach().double()
    weight = dis_weight(log_ratio, eps_low=eps_low, eps_high=eps_high)
    kept = action & (weight > 0)
    zero = torch.zeros_like(weight)
    # Both factors are replaced before they meet: 0·NaN and 0·inf are NaN, in the loss and in its gradient.
    coefficient = torch.where(kept, weight * advantage.detach().double(), zero)
    loss_sum = -(coefficient * torch.where(kept, logp.double(), zero)).sum()
    return loss_sum / divisor(denominator), ratio_tally(log_ratio, action, kept, loss_sum)
