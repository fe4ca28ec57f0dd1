"""Writing a Hugging Face model folder for a Llama with plain files: no torch, no transformers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

WEIGHTS = "model.safetensors"


@dataclass(frozen=True, kw_only=True)
class LlamaShape:
    """The sizes of a Llama, in the words of its Hugging Face config."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    max_position_embeddings: int
    rope_theta: float
    rms_norm_eps: float

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_attention_heads


@dataclass(frozen=True, kw_only=True)
class SpecialTokens:
    """Token strings of a byte-level vocabulary that are never split, and their roles."""

    bos: str
    eos: str
    pad: str
    unk: str
    special: tuple[str, ...]  # all of them, the ones above included


def write_config(folder: Path, shape: LlamaShape, *, tied: bool, bos_id: int, eos_id: int, pad_id: int) -> None:
    """Write config.json and generation_config.json."""
    ids = {"bos_token_id": bos_id, "eos_token_id": eos_id, "pad_token_id": pad_id}
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": shape.vocab_size,
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size,
        "num_hidden_layers": shape.num_hidden_layers,
        "num_attention_heads": shape.num_attention_heads,
        "num_key_value_heads": shape.num_key_value_heads,
        "head_dim": shape.head_dim,
        "max_position_embeddings": shape.max_position_embeddings,
        "rope_theta": shape.rope_theta,
        "rope_scaling": None,
        "rms_norm_eps": shape.rms_norm_eps,
        "hidden_act": "silu",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "mlp_bias": False,
        "initializer_range": 0.02,
        "tie_word_embeddings": tied,
        "use_cache": True,
        "torch_dtype": "float32",
    }
    _write_json(folder / "config.json", config | ids)
    _write_json(folder / "generation_config.json", ids)


def write_weights(folder: Path, tensors: Mapping[str, NDArray[np.float32]]) -> None:
    """Write model.safetensors with Hugging Face names."""
    from safetensors.numpy import save_file

    contiguous = {name: np.ascontiguousarray(tensors[name]) for name in sorted(tensors)}
    save_file(contiguous, folder / WEIGHTS, metadata={"format": "pt"})


def write_tokenizer(
    folder: Path,
    *,
    vocab: Mapping[str, int],
    merges: list[tuple[str, str]],
    tokens: SpecialTokens,
    split_digits: bool,
    chat_template: str,
    max_length: int,
) -> None:
    """Write tokenizer.json, tokenizer_config.json and the chat template of a byte-level BPE.

    `vocab` maps token strings in the byte-level alphabet to ids. With `split_digits` every digit is a token of its own,
    which GGUF metadata names only by the pre-tokenizer's name.
    """
    tokenizer = Tokenizer(models.BPE(vocab=dict(vocab), merges=merges))
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.pre_tokenizer = (
        pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level])
        if split_digits
        else byte_level
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, normalized=False, special=True) for text in tokens.special])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        # The generic class: the named ones of transformers 5 rebuild the pre-tokenizer and lose the digit split.
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": tokens.bos,
        "eos_token": tokens.eos,
        "pad_token": tokens.pad,
        "unk_token": tokens.unk,
        "additional_special_tokens": list(tokens.special),
        "clean_up_tokenization_spaces": False,
        "model_max_length": max_length,
        "chat_template": chat_template,
    }
    _write_json(folder / "tokenizer_config.json", config)
    (folder / "chat_template.jinja").write_text(chat_template)


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n")
