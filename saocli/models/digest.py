"""The digest that a trainer's first export of a model folder has, without loading the model."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from saocli.config.trainer import DType
from saocli.digest import tensor_heading
from saocli.errors import MachineError
from saocli.stored import Stored, read_header

STORED = {DType.FP32: "F32", DType.BF16: "BF16"}
ELEMENT = {"F32": "<f4", "BF16": "<u2", "F16": "<f2"}  # numpy has no bfloat16: its bits
CHUNK = 2**22  # elements that are converted at once
HEAD = "lm_head.weight"
BUFFER = ".rotary_emb.inv_freq"  # old checkpoints hold it; it is computed from the config


def folder_digest(folder: Path, dtype: DType) -> str:
    """sha256 over the tensors that a trainer of type `dtype` would export from the model folder before any step.

    A tied model's head is its embedding, and no tensor of its own. Conversions round to nearest, ties to even, as the
    trainer's do. Raises MachineError for a tensor type that is none of F32, BF16, F16.
    """
    tied = bool(json.loads((folder / "config.json").read_text()).get("tie_word_embeddings", False))
    tensors = {
        name: stored for file in sorted(folder.glob("*.safetensors")) for name, stored in read_header(file)[0].items()
    }
    digest = hashlib.sha256()
    for name, stored in sorted(tensors.items()):
        if name.endswith(BUFFER) or (tied and name == HEAD):
            continue
        if stored.dtype not in ELEMENT:
            raise MachineError(f"{stored.file}: {name} is {stored.dtype}", fix=f"these work: {', '.join(ELEMENT)}")
        digest.update(tensor_heading(name, STORED[dtype], stored.shape))
        for part in _parts(stored):
            digest.update(_converted(part, stored.dtype, STORED[dtype]))
    return digest.hexdigest()


def _parts(stored: Stored) -> Iterator[NDArray[np.generic]]:
    flat = np.memmap(stored.file, ELEMENT[stored.dtype], "r", stored.start, (int(np.prod(stored.shape)),))
    for start in range(0, len(flat), CHUNK):
        yield flat[start : start + CHUNK]


def _converted(part: NDArray[np.generic], given: str, wanted: str) -> memoryview:
    """The bytes of `part` in the wanted type."""
    if given == wanted:
        return np.ascontiguousarray(part).data
    if given == "BF16":
        return (part.astype("<u4") << 16).data
    bits = part.astype("<f4").view("<u4")
    if wanted == "F32":
        return bits.data
    # bfloat16 is the upper half of float32; adding a half less one, plus the kept part's last bit, rounds to even.
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2").data
