"""Which models are trained and served as transformers computes them: told by config.json, before any weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from saocli.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Family:
    """An architecture whose Megatron form is held to transformers' by tests."""

    model_type: str  # by which transformers picks the class
    settings: Mapping[str, Any]  # what config.json must say of each, if it says anything


FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        "LlamaForCausalLM": Family(model_type="llama", settings={"attention_bias": False, "mlp_bias": False}),
        "Qwen2ForCausalLM": Family(model_type="qwen2", settings={"use_sliding_window": False}),
        "Qwen3ForCausalLM": Family(model_type="qwen3", settings={"attention_bias": False, "use_sliding_window": False}),
    }
)
# What none of them may say otherwise.
COMMON: Mapping[str, Any] = MappingProxyType(
    {"hidden_act": "silu", "partial_rotary_factor": 1.0, "quantization_config": None}
)
# Kinds of rotary embedding, each with the parameters that Megatron fixes in code.
ROTARY: Mapping[str, Mapping[str, float]] = MappingProxyType(
    {
        "default": {},
        "linear": {},
        "llama3": {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192},
    }
)
FULL_ATTENTION = "full_attention"


def refusal(config: Mapping[str, Any]) -> ConfigError | None:
    """Why a model with this config.json would not be trained faithfully, naming each such setting; None if it would be.

    Takes config.json as transformers 4 or 5 writes it, and what transformers makes of it in memory.
    """
    architecture = (config.get("architectures") or ["an unnamed architecture"])[0]
    works = ", ".join(FAMILIES)
    if architecture not in FAMILIES:
        return ConfigError(f"{architecture} cannot be trained", fix=f"these work: {works}")
    if wrong := list(_faults(config, FAMILIES[architecture])):
        return ConfigError(
            f"{architecture} with {', '.join(wrong)} cannot be trained",
            fix=f"use a model without it: {works} work unquantized, with SiLU, full attention, no biases but Qwen2's "
            f"own, and {', '.join(ROTARY)} rotary embeddings",
        )
    return None


def rotary(config: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The kind of rotary embedding and its parameters: `rope_scaling` in transformers 4, `rope_parameters` in 5."""
    parameters = dict(config.get("rope_scaling") or config.get("rope_parameters") or {})
    return str(parameters.get("rope_type", parameters.get("type", "default"))), parameters


def _faults(config: Mapping[str, Any], family: Family) -> Iterator[str]:
    """Each setting that the Megatron form would not follow, as `key=value`."""
    for key, value in {"model_type": family.model_type, **family.settings, **COMMON}.items():
        if config.get(key) not in (None, value):
            yield f"{key}={config[key]}"
    for layer_type in sorted(set(config.get("layer_types") or ()) - {FULL_ATTENTION}):
        yield f"layer_types={layer_type}"
    key = "rope_scaling" if config.get("rope_scaling") else "rope_parameters"
    kind, parameters = rotary(config)
    if kind not in ROTARY:
        yield f"{key}.rope_type={kind}"
        return
    wrong = [name for name, value in ROTARY[kind].items() if parameters.get(name) != value]
    wrong += [name for name, value in parameters.items() if isinstance(value, Mapping)]  # those of one type of layer
    if kind != "default" and not parameters.get("factor"):
        wrong.append("factor")
    if parameters.get("partial_rotary_factor", 1.0) != 1.0:
        wrong.append("partial_rotary_factor")
    yield from (f"{key}.{name}={parameters.get(name)}" for name in wrong)
