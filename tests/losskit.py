"""A policy loss and its gradient at given log-probs, for the tests of every loss."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from saocli.algo.reduce import Tally


def loss_and_grad(
    policy_loss: Callable[..., tuple[Tensor, Tally]],
    logp: list[float],
    rollout: list[float],
    advantage: list[float],
    mask: list[int],
    *,
    denominator: float | None = None,
    dtype: torch.dtype = torch.float64,
    **band: float,
) -> tuple[Tensor, Tensor, Tally]:
    """The loss, its gradient in `logp`, and the tally; the mask's tokens are the denominator unless one is given."""
    leaf = torch.tensor(logp, dtype=dtype, requires_grad=True)
    loss, tally = policy_loss(
        leaf,
        torch.tensor(rollout, dtype=dtype),
        torch.tensor(advantage, dtype=dtype),
        torch.tensor(mask),
        denominator=sum(mask) if denominator is None else denominator,
        **band,
    )
    loss.backward()
    assert leaf.grad is not None
    return loss.detach(), leaf.grad, tally
