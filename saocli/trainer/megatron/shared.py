"""Tensors for another process on this machine to read in place, handed over as torch does it: a pickle of handles.

Made here, unpickled there: nothing of this program unpickles anything.
"""

from __future__ import annotations

import base64
import io
import os
from collections.abc import Callable, Sequence
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
from torch.multiprocessing import reductions, set_sharing_strategy

from saocli.errors import TrainerError

_SHM = "/dev/shm"


def share(tensors: Sequence[tuple[str, torch.Tensor]], readers: int) -> tuple[list[str], torch.Tensor]:
    """Copy `tensors`, all of one dtype and device, into one shared buffer: a file in /dev/shm, or memory of their GPU.

    Returns for each reader a base64 pickle of (name, tensor) pairs that open it, which is what SGLang calls serialized
    named tensors, and the buffer, which must be kept until they have been read.

    Raises:
        TrainerError: /dev/shm has no room. Writing on regardless would end this process by SIGBUS.
    """
    dtype, device = tensors[0][1].dtype, tensors[0][1].device
    total = sum(tensor.numel() for _, tensor in tensors)
    buffer = torch.empty(total, dtype=dtype, device=device) if device.type == "cuda" else _in_files(total, dtype)
    views, offset = [], 0
    for name, tensor in tensors:
        view = buffer[offset : offset + tensor.numel()].view(tensor.shape)
        view.copy_(tensor)
        views.append((name, view))
        offset += tensor.numel()
    # One each: torch counts who has opened a GPU's memory by what was pickled.
    return [_pickled(views) for _ in range(readers)], buffer


class HandlePickler(ForkingPickler):
    """Names the GPU of a tensor by its UUID, as SGLang does: who sees other GPUs counts them differently."""

    def reducer_override(self, obj: Any) -> Any:
        if not (isinstance(obj, torch.Tensor) and obj.is_cuda):
            return NotImplemented
        rebuild, arguments = reductions.reduce_tensor(obj)
        return rebuild, with_uuid(arguments, lambda index: str(torch.cuda.get_device_properties(index).uuid))


STORAGE_DEVICE = 6  # where `torch.multiprocessing.reductions.rebuild_cuda_tensor` takes the GPU's index


def with_uuid(arguments: tuple[Any, ...], uuid: Callable[[int], str]) -> tuple[Any, ...]:
    """`arguments` of rebuild_cuda_tensor, with the GPU's UUID in place of its index."""
    return (*arguments[:STORAGE_DEVICE], uuid(arguments[STORAGE_DEVICE]), *arguments[STORAGE_DEVICE + 1 :])


def _pickled(views: Sequence[tuple[str, torch.Tensor]]) -> str:
    file = io.BytesIO()
    HandlePickler(file).dump(views)
    return base64.b64encode(file.getvalue()).decode()


def _in_files(total: int, dtype: torch.dtype) -> torch.Tensor:
    _check_room(total * dtype.itemsize)
    # torch's default passes file descriptors, which only a process' own children can take.
    set_sharing_strategy("file_system")
    return torch.empty(total, dtype=dtype).share_memory_()


def _check_room(size: int) -> None:
    status = os.statvfs(_SHM)
    if (free := status.f_bavail * status.f_frsize) < size:
        raise TrainerError(
            f"{_SHM} has {free / 2**20:.0f} MiB left, a bucket of weights takes {size / 2**20:.0f} MiB",
            fix="give it more (docker: --shm-size), or set engine.publish=disk",
        )
