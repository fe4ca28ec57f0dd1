"""A model folder in a few words."""

from __future__ import annotations

import math
from pathlib import Path

from safetensors import safe_open


def parameter_count(folder: Path) -> int:
    """Parameters stored in the folder's safetensors files, read from their headers."""
    total = 0
    for file in folder.glob("*.safetensors"):
        with safe_open(file, framework="numpy") as tensors:
            total += sum(math.prod(tensors.get_slice(name).get_shape()) for name in tensors.keys())  # noqa: SIM118
    return total


def describe(folder: Path) -> str:
    """E.g. `134.5M parameters`."""
    return f"{parameter_count(folder) / 1e6:.1f}M parameters"
