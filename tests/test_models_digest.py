"""A model folder's digest, read from its file, is the one of the trainer's first export."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from trainerkit import QUICK, build_training, make_model, megatron_process

from saocli.config.trainer import DType
from saocli.errors import MachineError
from saocli.models.digest import folder_digest


@pytest.fixture(scope="module")
def megatron() -> Iterator[Callable[..., Any]]:
    with megatron_process() as run:
        yield run


def exported(folder: Path, dtype: DType, target: Path) -> str:
    """In the Megatron process."""
    from saocli.trainer.megatron.export import export_actor

    training = build_training(folder, replace(QUICK, dtype=dtype))
    return export_actor(training.actor.learner, folder, target)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", list(DType))
@pytest.mark.parametrize("tied", [True, False])
def test_the_digest_is_the_trainers(megatron: Callable[..., Any], tmp_path: Path, dtype: DType, tied: bool) -> None:
    folder = make_model(tmp_path / "model", tied=tied)
    assert folder_digest(folder, dtype) == megatron(exported, folder, dtype, tmp_path / "out")
    assert folder_digest(tmp_path / "out", dtype) == folder_digest(folder, dtype), "and that of what it exported"


def stored(folder: Path, tensors: dict[str, torch.Tensor], *, tied: bool = False) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"tie_word_embeddings": tied}))
    save_file(tensors, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize("given", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("wanted", list(DType))
def test_types_are_converted_as_torch_does(tmp_path: Path, given: torch.dtype, wanted: DType) -> None:
    values = torch.randn(3, 1001, generator=torch.Generator().manual_seed(0)) * 1e-2
    # Halfway between two bfloat16 numbers, below an even and below an odd one.
    values[0, :2] = torch.tensor([1.00390625, 1.01171875])
    tensors = {"w": values.to(given)}
    target = {DType.FP32: torch.float32, DType.BF16: torch.bfloat16}[wanted]
    here = stored(tmp_path / "a", tensors)
    there = stored(tmp_path / "b", {"w": tensors["w"].to(target)})
    assert folder_digest(here, wanted) == folder_digest(there, wanted)


def test_shards_buffers_and_a_tied_head_change_nothing(tmp_path: Path) -> None:
    tensors = {"model.embed_tokens.weight": torch.ones(4, 2), "model.norm.weight": torch.zeros(2)}
    plain = folder_digest(stored(tmp_path / "a", tensors, tied=True), DType.FP32)
    more = {"lm_head.weight": torch.ones(4, 2), "model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(3)}
    assert folder_digest(stored(tmp_path / "b", tensors | more, tied=True), DType.FP32) == plain
    sharded = stored(tmp_path / "c", {}, tied=True)
    (sharded / "model.safetensors").unlink()
    for name, tensor in tensors.items():
        save_file({name: tensor}, sharded / f"{name}.safetensors")
    assert folder_digest(sharded, DType.FP32) == plain
    untied = folder_digest(stored(tmp_path / "d", tensors | more), DType.FP32)
    assert untied != plain


def test_one_bit_changes_it_and_other_types_are_refused(tmp_path: Path) -> None:
    folder = stored(tmp_path / "a", {"w": torch.zeros(5)})
    before = folder_digest(folder, DType.FP32)
    file = folder / "model.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    assert folder_digest(folder, DType.FP32) != before
    assert np.frombuffer(bytes(data[-4:]), "<u4")[0] == 1 << 24
    with pytest.raises(MachineError, match="w is I64"):
        folder_digest(stored(tmp_path / "b", {"w": torch.zeros(5, dtype=torch.int64)}), DType.FP32)
    assert load_file(file)["w"].shape == (5,)
