"""Log-probabilities of given tokens from hidden states, without ever holding the logits of a whole rollout."""

from __future__ import annotations

from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.tensor_parallel import copy_to_tensor_model_parallel_region, vocab_parallel_cross_entropy
from torch.utils.checkpoint import checkpoint


def token_logprobs(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    targets: torch.Tensor,
    temperature: torch.Tensor,
    *,
    vocab_size: int,
    chunk: int,
) -> torch.Tensor:
    """log softmax(hidden·weightᵀ / temperature)[target], natural log, fp32 softmax.

    Args:
        hidden: [N, h], the final hidden state at the position *before* each target.
        weight: [V_padded/tp, h], this rank's rows of the head.
        targets: [N] token ids.
        temperature: [N], τ each target was sampled with.
        vocab_size: V; the columns that padding added beyond it take no probability.
        chunk: tokens whose logits exist at once, in the forward and in the backward pass: peak is chunk·V/tp floats.

    Returns:
        [N] fp32, differentiable in `hidden` and `weight`.
    """
    if targets.numel() <= chunk:
        return _chunk_logprobs(hidden, weight, targets, temperature, vocab_size)
    parts = zip(hidden.split(chunk), targets.split(chunk), temperature.split(chunk), strict=True)
    # Logits are dropped after each chunk and computed again when its gradient is.
    return torch.cat(
        [
            checkpoint(_chunk_logprobs, h, weight, ids, tau, vocab_size, use_reentrant=False, preserve_rng_state=False)
            for h, ids, tau in parts
        ]
    )


def _chunk_logprobs(
    hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor, temperature: torch.Tensor, vocab_size: int
) -> torch.Tensor:
    hidden = copy_to_tensor_model_parallel_region(hidden)
    logits = HeadLinear.apply(hidden, weight).float().div_(temperature.unsqueeze(-1))
    rows = weight.shape[0]
    real = vocab_size - parallel_state.get_tensor_model_parallel_rank() * rows
    if real < rows:
        logits[:, max(real, 0) :] = -torch.inf
    return -vocab_parallel_cross_entropy(logits, targets)


class HeadLinear(torch.autograd.Function):
    """hidden·weightᵀ whose weight gradient goes straight into Megatron's gradient buffer.

    autograd would make one head-sized tensor per chunk and add them up, with the embedding's on top in a tied model.
    A weight without a buffer gets its gradient the ordinary way.
    """

    @staticmethod
    def forward(ctx: Any, hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(hidden, weight)
        ctx.buffer = getattr(weight, "main_grad", None)
        return hidden @ weight.T

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        hidden, weight = ctx.saved_tensors
        if ctx.buffer is None:
            return gradient @ weight, gradient.T @ hidden
        if ctx.buffer.dtype == gradient.dtype:
            ctx.buffer.addmm_(gradient.T, hidden)
        else:
            ctx.buffer.add_(gradient.T @ hidden)
        return gradient @ weight, None
