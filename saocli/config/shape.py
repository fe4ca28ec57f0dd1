"""A decoder's sizes as its config.json states them, and the exact number of its parameters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from saocli.config.families import refusal
from saocli.errors import ConfigError


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """Sizes of a decoder with RMSNorm, gated feed-forward and grouped-query attention."""

    vocab: int
    hidden: int
    ffn: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    tied: bool  # the language-model head is the embedding
    qkv_bias: bool
    qk_norm: bool

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """Read config.json. Raises ConfigError for a model that cannot be trained, or a config that lacks a size."""
        if wrong := refusal(config):
            raise wrong
        kind = config["architectures"][0]
        try:
            heads = int(config["num_attention_heads"])
            return cls(
                vocab=int(config["vocab_size"]),
                hidden=int(config["hidden_size"]),
                ffn=int(config["intermediate_size"]),
                layers=int(config["num_hidden_layers"]),
                heads=heads,
                kv_heads=int(config.get("num_key_value_heads") or heads),
                head_dim=int(config.get("head_dim") or config["hidden_size"] // heads),
                tied=bool(config.get("tie_word_embeddings", False)),
                qkv_bias=kind == "Qwen2ForCausalLM",
                qk_norm=kind == "Qwen3ForCausalLM",
            )
        except KeyError as error:
            raise ConfigError(f"the model's config.json lacks {error}", fix="take a complete model folder") from error

    @property
    def query(self) -> int:
        """Width of all query heads together."""
        return self.heads * self.head_dim

    @property
    def key_value(self) -> int:
        """Width of all key heads together, and of all value heads."""
        return self.kv_heads * self.head_dim

    @property
    def gate_and_up(self) -> int:
        """Parameters of the gated feed-forward's first matrix, over all layers."""
        return self.layers * 2 * self.ffn * self.hidden

    @property
    def embedding(self) -> int:
        """Parameters of the token embedding."""
        return self.vocab * self.hidden

    @property
    def backbone(self) -> int:
        """Parameters of embedding, layers and last norm: everything but a head."""
        qkv = self.query + 2 * self.key_value
        attention = qkv * self.hidden + self.query * self.hidden
        attention += qkv * self.qkv_bias + 2 * self.head_dim * self.qk_norm
        layer = attention + 3 * self.ffn * self.hidden + 2 * self.hidden
        return self.embedding + self.layers * layer + self.hidden

    @property
    def parameters(self) -> int:
        """Parameters of the language model; a tied head counts once, as the embedding."""
        return self.backbone + (0 if self.tied else self.embedding)

    @property
    def critic_parameters(self) -> int:
        """Parameters of the value model: the same backbone, and a head of one row."""
        return self.backbone + self.hidden
