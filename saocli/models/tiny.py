"""A random Llama of a million parameters over bytes, made from a seed: no download, equal bits for equal seeds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from saocli.models.hf_folder import LlamaShape, SpecialTokens, write_config, write_tokenizer, write_weights

BYTES = 256
SPECIAL = ("<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|pad|>")  # ids 256 … 259
SHAPE = LlamaShape(
    vocab_size=BYTES + len(SPECIAL),
    hidden_size=128,
    intermediate_size=512,
    num_hidden_layers=4,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=1024,
    rope_theta=10_000.0,
    rms_norm_eps=1e-5,
)
INIT_STD = 0.02
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def origin(seed: int) -> dict[str, Any]:
    """What the marker of such a model says."""
    return {"builder": "tiny", "seed": seed, "format": 1}


def build_tiny(folder: Path, seed: int) -> None:
    """Write the model into the existing `folder`: config, fp32 safetensors, tokenizer with chat template.

    Weights are normal with standard deviation 0.02 (norms are one), drawn tensor by tensor in the order of the
    architecture, so that equal seeds give equal bytes. The output layer is untied.
    """
    write_weights(folder, _weights(np.random.Generator(np.random.PCG64(seed))))
    bos, eos, _, pad = range(BYTES, SHAPE.vocab_size)
    write_config(folder, SHAPE, tied=False, bos_id=bos, eos_id=eos, pad_id=pad)
    vocab = {char: byte for byte, char in enumerate(byte_alphabet())}
    write_tokenizer(
        folder,
        vocab=vocab | {token: BYTES + offset for offset, token in enumerate(SPECIAL)},
        merges=[],
        tokens=SpecialTokens(bos=SPECIAL[0], eos=SPECIAL[1], unk=SPECIAL[2], pad=SPECIAL[3], special=SPECIAL),
        split_digits=False,
        chat_template=CHAT_TEMPLATE,
        max_length=SHAPE.max_position_embeddings,
    )


def byte_alphabet() -> list[str]:
    """The printable character that stands for each byte in byte-level BPE, by byte value (GPT-2's table)."""
    printable = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    hidden = [byte for byte in range(BYTES) if byte not in printable]
    return [chr(byte) if byte in printable else chr(BYTES + hidden.index(byte)) for byte in range(BYTES)]


def _weights(rng: np.random.Generator) -> dict[str, NDArray[np.float32]]:
    """Every tensor of the model by its Hugging Face name."""
    hidden, ffn = SHAPE.hidden_size, SHAPE.intermediate_size
    keys = SHAPE.num_key_value_heads * SHAPE.head_dim

    def normal(rows: int, columns: int) -> NDArray[np.float32]:
        return rng.standard_normal((rows, columns), dtype=np.float32) * np.float32(INIT_STD)

    ones = np.ones(hidden, dtype=np.float32)
    tensors = {"model.embed_tokens.weight": normal(SHAPE.vocab_size, hidden)}
    for layer in range(SHAPE.num_hidden_layers):
        prefix = f"model.layers.{layer}."
        tensors |= {
            f"{prefix}input_layernorm.weight": ones,
            f"{prefix}self_attn.q_proj.weight": normal(hidden, hidden),
            f"{prefix}self_attn.k_proj.weight": normal(keys, hidden),
            f"{prefix}self_attn.v_proj.weight": normal(keys, hidden),
            f"{prefix}self_attn.o_proj.weight": normal(hidden, hidden),
            f"{prefix}post_attention_layernorm.weight": ones,
            f"{prefix}mlp.gate_proj.weight": normal(ffn, hidden),
            f"{prefix}mlp.up_proj.weight": normal(ffn, hidden),
            f"{prefix}mlp.down_proj.weight": normal(hidden, ffn),
        }
    return tensors | {"model.norm.weight": ones, "lm_head.weight": normal(SHAPE.vocab_size, hidden)}
