"""Where tensors lie in a safetensors file, read from its header alone; and which folders are whole.

Row 0: engine and models ask for the one, trainer and store for the other.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

MARKER = "sao-complete.json"  # written last into a folder of weights or of a trainer's state


@dataclass(frozen=True, slots=True)
class Stored:
    """One tensor's place: bytes [start, end) of `file`."""

    file: Path
    dtype: str  # as safetensors calls it: F32 | BF16 | F16 | …
    shape: tuple[int, ...]
    start: int
    end: int


def read_header(path: Path) -> tuple[dict[str, Stored], int]:
    """Every tensor of the file by name, and where the header ends.

    Layout: 8 bytes little-endian N, then N bytes of JSON, then the tensors' bytes. A file that is not so raises
    OSError, ValueError, KeyError, TypeError or AttributeError.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(min(length, size)))
    header.pop("__metadata__", None)
    found = {}
    for name, entry in header.items():
        start, end = (8 + length + offset for offset in entry["data_offsets"])
        found[name] = Stored(path, entry["dtype"], tuple(entry["shape"]), start, end)
    return found, 8 + length
