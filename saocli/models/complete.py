"""Is a Hugging Face model folder whole? Looks at files and headers, reads no weights."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

_TOKENIZERS = (("tokenizer.json",), ("tokenizer.model",), ("vocab.json", "merges.txt"))


def fault(folder: Path) -> str | None:
    """What is wrong with a model folder, naming the file; None when it has all that we load."""
    if not folder.is_dir():
        return f"{folder} is no folder"
    try:
        _object(folder / "config.json")
        if not any(all((folder / name).is_file() for name in names) for names in _TOKENIZERS):
            raise ValueError(f"{folder / 'tokenizer.json'} is missing")
        for path in _weight_files(folder):
            _check_safetensors(path)
    except (OSError, ValueError) as error:
        return f"{error.filename} is missing" if isinstance(error, FileNotFoundError) else str(error)
    return None


def _weight_files(folder: Path) -> list[Path]:
    """The safetensors files that together are the model."""
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        return [folder / "model.safetensors"]
    shards = _object(index).get("weight_map")
    if not isinstance(shards, dict) or not shards:
        raise ValueError(f"{index} has no weight_map")
    return [folder / name for name in sorted(set(shards.values()))]


def _check_safetensors(path: Path) -> None:
    """Raise ValueError unless the file is as long as its header says."""
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
        if not 0 < length <= size - 8:
            raise ValueError(f"{path} is no whole safetensors file")
        try:
            header = json.loads(file.read(length))
            end = max(entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__")
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path} has an unreadable header") from error
    if size != 8 + length + end:
        raise ValueError(f"{path} has {size} bytes, its header says {8 + length + end}")


def _object(path: Path) -> dict[str, Any]:
    """The JSON object in a file. Raises FileNotFoundError, or ValueError that names it."""
    try:
        value = json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(f"{path} is not readable as JSON: {error}") from error
    if not isinstance(value, dict):
        raise ValueError(f"{path} holds no JSON object")
    return value
