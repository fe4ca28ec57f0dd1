"""Memory that is free and still held: by reference cycles, and by the C library."""

from __future__ import annotations

import ctypes
import gc

import torch


def release() -> None:
    """Hand memory that nobody needs back to the system, as far as the C library can (glibc).

    What a pass freed would be used again in the next one, but stands beside what a checkpoint needs for itself.
    """
    gc.collect()
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if malloc_trim is not None:
        malloc_trim(0)


def give_back(device: torch.device) -> None:
    """Hand the GPU memory that torch keeps for its next pass to whoever shares the device."""
    if device.type == "cuda":
        gc.collect()
        torch.cuda.empty_cache()
