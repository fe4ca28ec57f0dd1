"""Whether the model is here or can be had, and its sizes; nothing is fetched or made."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from types import MappingProxyType
from typing import Any

from saocli.config.model import ModelConfig
from saocli.config.shape import Shape
from saocli.doctor.finding import Finding, Mark
from saocli.doctor.words import place
from saocli.models.cache import models_root
from saocli.models.resolve import present

_QWEN = {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_act": "silu"}
_LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu"}

# From the published config.json of the shipped models, so that a machine can be judged before it has fetched them.
PUBLISHED: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "HuggingFaceTB/SmolLM2-135M-Instruct": {
            **_LLAMA,
            "vocab_size": 49152,
            "hidden_size": 576,
            "intermediate_size": 1536,
            "num_hidden_layers": 30,
            "num_attention_heads": 9,
            "num_key_value_heads": 3,
            "max_position_embeddings": 8192,
            "tie_word_embeddings": True,
        },
        "Qwen/Qwen2.5-1.5B-Instruct": {
            **_QWEN,
            "vocab_size": 151936,
            "hidden_size": 1536,
            "intermediate_size": 8960,
            "num_hidden_layers": 28,
            "num_attention_heads": 12,
            "num_key_value_heads": 2,
            "max_position_embeddings": 32768,
            "tie_word_embeddings": True,
        },
    }
)


def config_json(model: ModelConfig) -> Mapping[str, Any] | None:
    """The model's config: from its folder, from the builder that would make it, or as published; None when unknown.

    Raises ConfigError for a `model.path` that is no model.
    """
    if folder := present(model):
        found: Mapping[str, Any] = json.loads((folder / "config.json").read_text())
        return found
    if model.builder == "tiny":
        from saocli.models.tiny import SHAPE

        return {**_LLAMA, **asdict(SHAPE)}
    return PUBLISHED.get(model.hub_id or "")


def model_finding(model: ModelConfig, config: Mapping[str, Any] | None, *, probe: bool) -> Finding:
    """Where the model is or will come from. `probe`: ask the hub whether it has it (3 s at most where none answers)."""
    label = "model"
    size = f"{model.name}, {Shape.from_config(config).parameters / 1e6:,.1f}M parameters" if config else model.name
    if folder := present(model):
        return Finding(Mark.OK, label, f"{size} · {place(folder)}")
    if model.builder == "tiny":
        return Finding(Mark.OK, label, f"{size} · made on the spot")
    if model.builder is not None:
        return Finding(Mark.NOTE, label, f"{size} · not here yet: fetched at the first start")
    why = "model.hub_id is not set" if model.hub_id is None else _refusal(model.hub_id) if probe else None
    if why is None:
        return Finding(Mark.NOTE, label, f"{size} · not here yet: fetched from the hub at the first start")
    return Finding(
        Mark.MISSING,
        label,
        f"{size} · not here, and {why}",
        "",
        f"connect once to fetch it, put its files into {place(models_root() / model.name)}, or set model.path",
    )


def _refusal(hub_id: str) -> str | None:
    """Why the hub does not give the model; None when it does."""
    from huggingface_hub import HfApi, constants
    from huggingface_hub.errors import GatedRepoError, HFValidationError, HTTPError, RepositoryNotFoundError

    from saocli.models.hub import PROBE_TIMEOUT_S

    if constants.HF_HUB_OFFLINE:
        return "HF_HUB_OFFLINE is set"
    try:
        HfApi().model_info(hub_id, timeout=PROBE_TIMEOUT_S)
    except (RepositoryNotFoundError, GatedRepoError, HFValidationError):
        return f"the hub does not give {hub_id}"
    except (HTTPError, OSError):
        return "the hub cannot be reached"
    return None
