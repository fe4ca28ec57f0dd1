"""What a folder of safetensors holds, read from the files' headers: checked whole before SGLang is told to load it.

SGLang 0.5.23 takes a folder that lacks tensors without a word, and rolls a load that failed back from the very folder
that failed, which ends it. So nothing that does not fit may reach it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path

from saocli.errors import EngineError
from saocli.stored import Stored, read_header

BYTES = {"F32": 4, "BF16": 2, "F16": 2}
_INDEX = "model.safetensors.index.json"


def stored_tensors(folder: Path) -> dict[str, Stored]:
    """Every tensor in the folder's safetensors by name. Raises EngineError for files that are not complete."""
    found: dict[str, Stored] = {}
    for file in _files(folder):
        found |= _header(file)
    return found


def check_fits(
    folder: Path, tensors: Mapping[str, Stored], served: Mapping[str, Stored], optional: Iterable[str]
) -> None:
    """Raise EngineError unless `tensors` of `folder` have the names and shapes of `served`, but for `optional` ones."""
    missing = sorted(served.keys() - tensors.keys() - set(optional))
    if missing:
        raise EngineError(f"{folder} lacks {len(missing)} of the served model's tensors: {', '.join(missing[:4])}")
    for name, tensor in tensors.items():
        if name not in served:
            if name in optional:
                continue
            raise EngineError(f"{tensor.file} holds {name}, which the served model does not have")
        if tensor.shape != served[name].shape:
            raise EngineError(
                f"{tensor.file}: {name} is {list(tensor.shape)}, the served model has {list(served[name].shape)}"
            )


def derived_names(folder: Path) -> frozenset[str]:
    """Names that a folder may have or lack: a tied head is the embedding once more."""
    try:
        config = json.loads((folder / "config.json").read_text())
    except (OSError, ValueError) as error:
        raise EngineError(f"{folder} holds no readable config.json: {error}") from error
    return frozenset({"lm_head.weight"}) if config.get("tie_word_embeddings") else frozenset()


def _files(folder: Path) -> list[Path]:
    index = folder / _INDEX
    if index.is_file():
        try:
            names = set(json.loads(index.read_text())["weight_map"].values())
        except (OSError, ValueError, KeyError, AttributeError) as error:
            raise EngineError(f"{index} is not a weight index: {error!r}") from error
        return [folder / name for name in sorted(names)]
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise EngineError(f"{folder} holds no safetensors")
    return files


def _header(path: Path) -> dict[str, Stored]:
    """Its tensors, which fill the file from the header's end to its own without a gap."""
    try:
        found, begin = read_header(path)
        size = path.stat().st_size
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise EngineError(f"{path} is not a complete safetensors file: {error}") from error
    for name, tensor in found.items():
        if tensor.dtype not in BYTES:
            raise EngineError(f"{path}: {name} is {tensor.dtype}, expected one of {', '.join(sorted(BYTES))}")
        if tensor.end - tensor.start != math.prod(tensor.shape) * BYTES[tensor.dtype]:
            raise EngineError(f"{path} is not a complete safetensors file: {name} has the wrong number of bytes")
    if max((tensor.end for tensor in found.values()), default=begin) != size:
        raise EngineError(f"{path} is not a complete safetensors file: it has {size} bytes")
    return found
