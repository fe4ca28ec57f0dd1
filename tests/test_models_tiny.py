"""The model that is made from a seed."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from saocli.models.complete import fault
from saocli.models.tiny import SPECIAL, build_tiny

SEED_0_WEIGHTS = "606a7186cc7a"


def made(folder: Path, seed: int) -> dict[str, str]:
    folder.mkdir()
    build_tiny(folder, seed)
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


def test_equal_seeds_give_equal_bytes_quickly(tmp_path: Path) -> None:
    start = time.monotonic()
    first = made(tmp_path / "a", 0)
    assert time.monotonic() - start < 2
    assert first == made(tmp_path / "b", 0)
    assert first["model.safetensors"].startswith(SEED_0_WEIGHTS)
    other = made(tmp_path / "c", 1)
    assert {name for name in first if first[name] != other[name]} == {"model.safetensors"}
    assert fault(tmp_path / "a") is None


def test_transformers_loads_a_million_parameters(tmp_path: Path) -> None:
    made(tmp_path / "m", 0)
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "m")
    assert sum(parameter.numel() for parameter in model.parameters()) == 1_050_752
    assert (model.config.num_attention_heads, model.config.num_key_value_heads) == (4, 2)
    assert model.config.max_position_embeddings == 1024
    assert (model.generation_config.eos_token_id, model.generation_config.pad_token_id) == (257, 259)
    assert model.dtype == torch.float32
    with torch.no_grad():
        entropy = torch.distributions.Categorical(logits=model(torch.arange(260)[None]).logits).entropy()
    # Near the uniform ln 260 = 5.561: a task's chance level is the share of tokens that fit.
    assert entropy.min() > 5.5


def test_a_byte_is_its_token(tmp_path: Path) -> None:
    made(tmp_path / "m", 0)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "m")
    text = "naïve 東 🎉 12\n\t" + "".join(map(chr, range(256)))
    assert tokenizer.encode(text) == list(text.encode())
    assert tokenizer.decode(list(text.encode())) == text
    assert tokenizer.encode("".join(SPECIAL)) == [256, 257, 258, 259]
    assert len(tokenizer) == 260
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id) == (256, 257, 259)
    assert tokenizer.decode([104, 105, 257], skip_special_tokens=True) == "hi"
    shown = tokenizer.apply_chat_template(
        [{"role": "user", "content": "hi"}], tokenize=False, add_generation_prompt=True
    )
    assert shown == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"


def test_making_it_needs_neither_torch_nor_transformers() -> None:
    code = (
        "import sys, saocli.models.tiny, saocli.models.smollm2, saocli.models.resolve\n"
        "print([name for name in ('torch', 'transformers', 'huggingface_hub') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("seed", [1, 2])
def test_other_seeds_are_other_models(tmp_path: Path, seed: int) -> None:
    assert not made(tmp_path / "m", seed)["model.safetensors"].startswith(SEED_0_WEIGHTS)
