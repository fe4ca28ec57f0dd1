"""The actor as a Hugging Face folder, hashed while it is written."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from saocli.digest import tensor_heading
from saocli.stored import MARKER
from saocli.trainer.megatron.atomic import is_writer, replacing
from saocli.trainer.megatron.learner import Learner

WEIGHTS = "model.safetensors"
NOT_COPIED = (".safetensors", ".safetensors.index.json", ".bin", ".bin.index.json", ".pt", ".pth", ".gguf")
SAFETENSORS_DTYPE = {torch.float32: "F32", torch.bfloat16: "BF16"}
CONFIG_DTYPE = {torch.float32: "float32", torch.bfloat16: "bfloat16"}


@torch.no_grad()
def export_actor(learner: Learner, source: Path, folder: Path) -> str:
    """Write the weights in the trainer's dtype, with every other file of `source`; returns their digest.

    Collective: every rank calls it, rank 0 writes and returns the digest, the others return ''. Tensors without change
    of layout are written from the parameters themselves.
    """
    tensors = gathered(learner)
    digest = ""
    with replacing(folder) as rough:
        if is_writer():
            copy_other_files(source, rough, learner.bridge.dtype)
            digest = write_safetensors(rough / WEIGHTS, tensors)
            (rough / MARKER).write_text(json.dumps({"digest": digest}) + "\n")
    return digest


@torch.no_grad()
def actor_digest(learner: Learner) -> str:
    """The digest that `export_actor` would return, without writing anything. Collective in the same way."""
    tensors = gathered(learner)
    digest = hashlib.sha256()
    for heading, data in _laid_out(tensors):
        digest.update(heading)
        digest.update(data)
    return digest.hexdigest() if is_writer() else ""


def write_safetensors(path: Path, tensors: Mapping[str, torch.Tensor]) -> str:
    """Write `tensors` in name order; returns the sha256 over each one's name, dtype, shape and bytes, in that order.

    Streams: neither the file's bytes nor a second copy of the weights are ever in memory. Raises OSError.
    """
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name in sorted(tensors):
        tensor = tensors[name]
        end = offset + tensor.numel() * tensor.element_size()
        header[name] = {
            "dtype": SAFETENSORS_DTYPE[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)

    digest = hashlib.sha256()
    with path.open("wb", buffering=0) as file, ThreadPoolExecutor(max_workers=1) as hasher:
        file.write(len(text).to_bytes(8, "little") + text)
        for heading, data in _laid_out(tensors):
            digest.update(heading)
            # Hashing and writing both release the GIL; together they take as long as the slower one.
            hashed = hasher.submit(digest.update, data)
            written = 0
            while written < len(data):
                written += file.write(data[written:])
            hashed.result()
        os.fsync(file.fileno())
    return digest.hexdigest()


def gathered(learner: Learner) -> dict[str, torch.Tensor]:
    """The actor's tensors under their Hugging Face names; every rank takes part, rank 0 gets them."""
    tensors = {}
    for name, tensor in learner.bridge.export_weights([learner.model]):
        if is_writer():
            tensors[name] = tensor
    return tensors


def _laid_out(tensors: Mapping[str, torch.Tensor]) -> Iterator[tuple[bytes, memoryview]]:
    """What the digest is over, in name order: each tensor's heading, and its bytes."""
    for name in sorted(tensors):
        tensor = tensors[name].contiguous().cpu()
        data = memoryview(tensor.view(-1).view(torch.uint8).numpy())  # type: ignore[arg-type]
        yield tensor_heading(name, SAFETENSORS_DTYPE[tensor.dtype], tensor.shape), data


def copy_other_files(source: Path, folder: Path, dtype: torch.dtype) -> None:
    """Config, tokenizer and whatever else the source model has besides weights; the config names the new dtype."""
    for file in sorted(source.iterdir()):
        if file.is_file() and file.name != MARKER and not file.name.endswith(NOT_COPIED):
            shutil.copyfile(file, folder / file.name)
    config = json.loads((folder / "config.json").read_text())
    # The key's name in transformers 5, and in 4.
    config["dtype"] = CONFIG_DTYPE[dtype]
    if "torch_dtype" in config:
        config["torch_dtype"] = CONFIG_DTYPE[dtype]
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
