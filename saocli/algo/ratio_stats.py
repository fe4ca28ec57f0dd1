"""What every ratio-based policy loss reports: how far trainer and engine are apart, and what was masked."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from saocli.algo.reduce import Tally


@torch.no_grad()
def ratio_tally(log_ratio: Tensor, action_mask: Tensor, kept: Tensor, loss_sum: Tensor) -> Tally:
    """Sums and maxima over action tokens of one micro-batch, from raw (unmasked, unclipped) ratios.

    `log_ratio` = logp − rollout_logp [T] in nats, `action_mask` [T] bool, `kept` [T] bool: tokens that get a gradient,
    `loss_sum` []: the loss before its denominator. A token without a finite ratio and log-ratio (rollout_logp of −inf)
    has no place in a mean: it counts as an action token, but not in ratio, KL and difference statistics.
    """
    ratio = log_ratio.exp()
    finite = action_mask & log_ratio.isfinite() & ratio.isfinite()
    zero = torch.zeros((), dtype=log_ratio.dtype, device=log_ratio.device)
    r = torch.where(finite, ratio, zero)
    diff = torch.where(finite, log_ratio.abs(), zero)
    # k3 estimator of KL(rollout ‖ trainer), ≥ 0 per token (Schulman 2020).
    kl = torch.where(finite, ratio - 1.0 - log_ratio, zero)
    return Tally(
        sums={
            "action_tokens": action_mask.sum().double(),
            "kept_tokens": (action_mask & kept).sum().double(),
            "finite_tokens": finite.sum().double(),
            "loss": loss_sum.detach().double(),
            "ratio": r.sum(),
            "kl": kl.sum(),
            "diff": diff.sum(),
        },
        maxima={
            "ratio": torch.cat([r.flatten(), zero[None]]).max(),
            "diff": torch.cat([diff.flatten(), zero[None]]).max(),
        },
    )


def ratio_metrics(tally: Tally) -> Mapping[str, float | None]:
    """The contract's policy metrics of a whole batch; None where there was no token to take them over."""
    sums = {name: float(value) for name, value in tally.sums.items()}
    maxima = {name: float(value) for name, value in tally.maxima.items()}
    tokens, finite = sums["action_tokens"], sums["finite_tokens"]
    return {
        "pg_loss": sums["loss"] / tokens if tokens else None,
        "pg_clipfrac": 1.0 - sums["kept_tokens"] / tokens if tokens else None,
        "ratio_mean": sums["ratio"] / finite if finite else None,
        "ratio_max": maxima["ratio"] if finite else None,
        "approx_kl": sums["kl"] / finite if finite else None,
        "train_rollout_logprob_abs_diff": sums["diff"] / finite if finite else None,
        "train_rollout_logprob_abs_diff_max": maxima["diff"] if finite else None,
    }
