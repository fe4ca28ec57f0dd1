"""From a Hugging Face config to Megatron's: which models work, and mbridge's weight maps for the local layer spec."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import torch
from megatron.core import parallel_state
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.transformer.spec_utils import ModuleSpec
from transformers import AutoConfig, PretrainedConfig

from saocli.config.families import refusal, rotary
from saocli.errors import TrainerError
from saocli.trainer.megatron.attention import CausalAttention
from saocli.trainer.megatron.families import BRIDGES, LLMBridge


class LocalSpec(LLMBridge):
    """What every bridge of ours overrides in mbridge: Megatron's own layers instead of Transformer Engine's."""

    def _build_base_config(self, **kwargs: Any) -> Any:
        # Dropout is zero whatever the Hugging Face config says or lacks: it would throw on-policy tokens out of the
        # DIS band. `calculate_per_token_loss` makes DDP sum gradients over ranks instead of averaging them.
        overrides = {
            "attention_dropout": 0.0,
            "hidden_dropout": 0.0,
            "calculate_per_token_loss": True,
            "sequence_parallel": False,
            "masked_softmax_fusion": False,
            "bias_activation_fusion": False,
            "bias_dropout_fusion": False,
            "apply_rope_fusion": False,
            "gradient_accumulation_fusion": False,
            # Weights are read right after. Megatron's initialisation still runs, for it marks how each is partitioned.
            "init_method": _leave,
            "output_layer_init_method": _leave,
            "embedding_init_method": _leave,
            "use_cpu_initialization": not torch.cuda.is_available(),
        }
        return super()._build_base_config(**(kwargs | overrides))

    def _get_transformer_layer_spec(self, vp_stage: int | None = None) -> ModuleSpec:
        spec = get_gpt_layer_local_spec(normalization="RMSNorm", qk_layernorm=self.config.qk_layernorm)
        spec.submodules.self_attention.submodules.core_attention = CausalAttention
        return spec

    def _get_gptmodel_args(self) -> dict[str, Any]:
        return {
            "vocab_size": self.padded_vocab_size,
            "max_sequence_length": self.hf_config.max_position_embeddings,
            "position_embedding_type": "rope",
            **rope_arguments(self.hf_config),
        }


def _leave(weight: torch.Tensor) -> torch.Tensor:
    return weight


def read_config(folder: Path) -> PretrainedConfig:
    """The Hugging Face config of `folder`. Raises TrainerError for models that would not be trained faithfully."""
    try:
        if wrong := refusal(json.loads((folder / "config.json").read_text())):
            raise TrainerError(wrong.message, fix=wrong.fix)
        return AutoConfig.from_pretrained(folder)
    except (OSError, ValueError) as error:
        raise TrainerError(f"{folder} is not a Hugging Face model folder: {error}", fix="check model.path") from error


def rope_arguments(config: PretrainedConfig) -> dict[str, Any]:
    """Megatron's rotary arguments for a config that `read_config` let through."""
    kind, rope = rotary(config.to_dict())
    base = {"rotary_base": rope["rope_theta"]}
    match kind:
        case "linear":
            return base | {"seq_len_interpolation_factor": rope["factor"]}
        case "llama3":
            return base | {"rope_scaling": True, "rope_scaling_factor": rope["factor"]}
    return base


def make_bridge(config: PretrainedConfig, dtype: torch.dtype, *, vocab_multiple: int | None = None) -> LLMBridge:
    """A bridge for this one model.

    Each call makes its own subclass: mbridge writes a tied model's head into class-level maps, so that two models of
    one class would mix up their heads. The vocabulary is padded to a multiple of `vocab_multiple` (default: the
    tensor-parallel size, which must divide it).
    """
    base = BRIDGES[config.architectures[0]]
    members = {
        "_DIRECT_MAPPING": dict(base._DIRECT_MAPPING),
        "_ATTENTION_MAPPING": {k: v for k, v in base._ATTENTION_MAPPING.items() if "layer_norm_weight" not in k},
        "_MLP_MAPPING": {
            **{k: v for k, v in base._MLP_MAPPING.items() if "layer_norm_weight" not in k},
            "pre_mlp_layernorm.weight": ["model.layers.{layer_number}.post_attention_layernorm.weight"],
        },
        "_OTHER_MAPPING": {"input_layernorm.weight": ["model.layers.{layer_number}.input_layernorm.weight"]},
    }
    multiple = vocab_multiple or parallel_state.get_tensor_model_parallel_world_size()
    bridge = cast(
        LLMBridge,
        type(f"Local{base.__name__}", (LocalSpec, base), members)(config, dtype, make_vocab_size_divisible_by=multiple),
    )
    bridge.vocab_size = config.vocab_size
    bridge.padded_vocab_size = -(-config.vocab_size // multiple) * multiple
    return bridge
