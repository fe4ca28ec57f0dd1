"""The critic's loss (SAO, arXiv 2607.07508 §3.2; optional clip as in PPO, arXiv 1707.06347)."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from saocli.algo.reduce import Tally, divisor, same_shape


def value_loss(
    values: Tensor,
    targets: Tensor,
    action_mask: Tensor,
    *,
    denominator: float,
    old_values: Tensor | None = None,
    clip: float | None = None,
) -> tuple[Tensor, Tally]:
    """Σ_t m[t]·½(V_t − target_t)² / denominator; gradient through `values` only, computed in float64.

    All tensors have one shape, [T] or [b, T]. `denominator`: action tokens of the whole optimizer batch. With `clip`,
    each term is the larger of that and ½(V_old + clamp(V − V_old, ±clip) − target)². Masked positions, NaN included,
    are never read. Returns the scalar contribution and the tally for `value_metrics`. Raises ValueError.
    """
    same_shape(values=values, targets=targets, action_mask=action_mask)
    action = action_mask.bool()
    v = values[action].double()
    target = targets.detach()[action].double()
    error = (v - target).square()
    if clip is not None:
        if old_values is None or clip <= 0:
            raise ValueError("value clipping needs old_values and a clip above 0")
        same_shape(values=values, old_values=old_values)
        old = old_values.detach()[action].double()
        error = error.maximum((old + (v - old).clamp(-clip, clip) - target).square())
    loss_sum = 0.5 * error.sum()
    tally = Tally(
        sums={
            "action_tokens": action.sum().double(),
            "loss": loss_sum.detach(),
            "value": v.detach().sum(),
        },
        maxima={},
    )
    return loss_sum / divisor(denominator), tally


def value_metrics(tally: Tally) -> Mapping[str, float | None]:
    """The contract's critic metrics of a whole batch; None without an action token."""
    sums = {name: float(value) for name, value in tally.sums.items()}
    tokens = sums["action_tokens"]
    return {
        "critic/loss": sums["loss"] / tokens if tokens else None,
        "critic/value_mean": sums["value"] / tokens if tokens else None,
    }
