"""Which gradients are not taken: those that are not finite, and those beyond the configured bound."""

from __future__ import annotations

import math


def refusal(model: str, *, loss: float | None, grad_norm: float, bound: float | None) -> str | None:
    """Why a step on this gradient must not be made, named after the model (actor, critic); None when it may.

    `grad_norm` is the global L2 norm before clipping, `bound` the largest that is taken (None: any finite one).
    """
    if not math.isfinite(grad_norm):
        return f"nonfinite_gradient_{model}"
    if loss is not None and not math.isfinite(loss):
        return f"nonfinite_loss_{model}"
    if bound is not None and grad_norm > bound:
        return f"spike_{model}"
    return None
