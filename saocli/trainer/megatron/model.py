"""Actor and critic bodies: Megatron's GPT up to its last norm, loaded from a Hugging Face folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.tensor_parallel import set_defaults_if_not_set_tensor_model_parallel_attributes
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.transformer_config import TransformerConfig

from saocli.trainer.megatron.families import LLMBridge


class Backbone(GPTModel):
    """A GPT whose forward ends at the final norm: the heads run only at the positions that need them."""

    def _postprocess(self, hidden_states: torch.Tensor, *_args: Any, **_kwargs: Any) -> torch.Tensor:
        return hidden_states

    def hidden(self, ids: torch.Tensor) -> torch.Tensor:
        """ids [b, s] → hidden states [s, b, h]. Rotary positions count from 0; right padding is never looked at."""
        return self(input_ids=ids, position_ids=None, attention_mask=None)

    def output_weight(self) -> torch.Tensor:
        """The language-model head's rows of this rank, [V/tp, h]; a tied model's are its embedding."""
        tied = self.share_embeddings_and_output_weights
        return self.shared_embedding_or_output_weight() if tied else self.output_layer.weight


class ValueHead(MegatronModule):
    """A scalar head, zero at the start: every value is 0 until the critic has learnt something."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__(config=config)
        self.weight = torch.nn.Parameter(torch.zeros(1, config.hidden_size, dtype=config.params_dtype))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """hidden [N, h] → values [N], fp32."""
        return F.linear(hidden, self.weight).squeeze(-1).float()


def load_actor(bridge: LLMBridge, folder: Path) -> Backbone:
    """The language model of `folder`, its head where the config puts it (tied or not)."""
    model = _build(bridge, tied=bool(bridge.hf_config.tie_word_embeddings))
    return _load(model, bridge, folder)


def load_critic(bridge: LLMBridge, folder: Path) -> Backbone:
    """The same backbone and weights as the actor's, with a ValueHead in place of the language-model head."""
    # Built as if tied, so that no language-model head is ever allocated or read.
    model = _load(_build(bridge, tied=True), bridge, folder)
    model.output_layer = ValueHead(bridge.config).to(next(model.parameters()).device)
    model.share_embeddings_and_output_weights = False
    set_defaults_if_not_set_tensor_model_parallel_attributes(model.output_layer.weight)
    return model


def _build(bridge: LLMBridge, *, tied: bool) -> Backbone:
    model = Backbone(
        config=bridge.config,
        transformer_layer_spec=bridge._get_transformer_layer_spec(),
        share_embeddings_and_output_weights=tied,
        **bridge._get_gptmodel_args(),
    )
    for parameter in model.parameters():
        set_defaults_if_not_set_tensor_model_parallel_attributes(parameter)
    # Megatron's norms are made in fp32 whatever `params_dtype` says.
    return model.to(device=torch.cuda.current_device(), dtype=bridge.config.params_dtype)


def _load(model: Backbone, bridge: LLMBridge, folder: Path) -> Backbone:
    # One tensor at a time: the whole checkpoint is never in memory beside the model.
    bridge.load_weights([model], str(folder), memory_efficient=True)
    return model
