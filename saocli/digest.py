"""The digest of a model's weights: sha256 over each tensor's heading and bytes, tensors in the order of their names.

Row 0, so that the trainer, which hashes what it exports, and a run without one come to the same digest.
"""

from __future__ import annotations

from collections.abc import Sequence


def tensor_heading(name: str, dtype: str, shape: Sequence[int]) -> bytes:
    """What goes into the digest before a tensor's little-endian bytes; `dtype` as safetensors calls it (F32, BF16)."""
    return f"{name} {dtype} {list(shape)}\n".encode()
