"""The clipped policy loss of PPO (arXiv 1707.06347), with a bound of its own on each side as in DAPO (2503.14476)."""

from __future__ import annotations

import torch
from torch import Tensor

from saocli.algo.band import bounds
from saocli.algo.ratio_stats import ratio_tally
from saocli.algo.reduce import Tally, divisor, same_shape

FAR = 20.0  # nats. With A < 0 the clip lets any ratio above 1 pass: e^89 is no float32 any more.


def ppo_loss(
    logp: Tensor,
    rollout_logp: Tensor,
    advantage: Tensor,
    action_mask: Tensor,
    *,
    eps_low: float,
    eps_high: float,
    denominator: float,
) -> tuple[Tensor, Tally]:
    """−Σ_t m[t]·min(r_t·A_t, clip(r_t, 1 − eps_low, 1 + eps_high)·A_t) / denominator, r = exp(logp − rollout_logp).

    Old log-probs are the engine's. A token is clipped, which leaves it without a gradient, where A > 0 and r is above
    the band, or A < 0 and r below it. A token more than 20 nats from the engine's log-prob, infinities included, is
    clipped too and adds 0 to the loss.

    `logp`, `rollout_logp` (nats, at the sampling temperature), `advantage`, `action_mask`: one shape, [T] or [b, T].
    `denominator`: action tokens of the whole optimizer batch, clipped ones included, so that contributions of
    micro-batches and ranks add up. Gradient flows through `logp` alone. What stands at masked positions, NaN included,
    reaches neither loss nor gradient. Computed in float64.

    Returns the scalar contribution to the loss and the tally for `ratio_metrics`, whose kept tokens are those that were
    not clipped. Raises ConfigError for a bad band, ValueError when shapes differ.
    """
    same_shape(logp=logp, rollout_logp=rollout_logp, advantage=advantage, action_mask=action_mask)
    low, high = bounds(eps_low, eps_high)
    action = action_mask.bool()
    log_ratio = logp.double() - rollout_logp.detach().double()
    near = action & (log_ratio.detach().abs() <= FAR)
    zero = torch.zeros_like(log_ratio)
    # Both factors are replaced before they meet: 0·NaN and 0·inf are NaN, in the loss and in its gradient.
    a = torch.where(near, advantage.detach().double(), zero)
    ratio = torch.where(near, log_ratio, zero).exp()
    clipped = ((a > 0) & (ratio > high)) | ((a < 0) & (ratio < low))
    loss_sum = -(a * torch.where(clipped, ratio.detach().clamp(low, high), ratio)).sum()
    return loss_sum / divisor(denominator), ratio_tally(log_ratio.detach(), action, near & ~clipped, loss_sum)
