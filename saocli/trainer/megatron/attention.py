"""Causal attention through torch's fused kernels, in place of Megatron's unfused one.

Megatron's local `DotProductAttention` keeps [b, heads, s, s] score matrices for the backward pass. The fused kernel
keeps none, so activation memory grows linearly with sequence length, on CPU and GPU alike.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.transformer_config import TransformerConfig


class CausalAttention(MegatronModule):
    """softmax(q·kᵀ/√d)·v over each row's earlier tokens.

    Sequences are padded on the right, so causality alone keeps padding out of every real token's view; no mask is read.
    """

    def __init__(
        self, config: TransformerConfig, layer_number: int, softmax_scale: float | None = None, **_unused: Any
    ) -> None:
        super().__init__(config=config)
        self.layer_number = layer_number
        self.softmax_scale = softmax_scale

    def forward(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_masks: Any, **_unused: Any
    ) -> torch.Tensor:
        """query [s, b, heads, d], key and value [s, b, groups, d] → context [s, b, heads·d]."""
        tokens, rows, heads, dim = query.shape
        repeat = heads // key.shape[2]
        if repeat > 1:
            key, value = (x.repeat_interleave(repeat, dim=2) for x in (key, value))
        query, key, value = (x.permute(1, 2, 0, 3) for x in (query, key, value))
        context = F.scaled_dot_product_attention(query, key, value, is_causal=True, scale=self.softmax_scale)
        return context.permute(2, 0, 1, 3).reshape(tokens, rows, heads * dim)
