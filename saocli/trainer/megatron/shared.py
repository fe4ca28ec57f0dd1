"""Tensors for another process on this machine to read in place, handed over as torch does it: a pickle of handles.

Made here, unpickled there: nothing of this program unpickles anything.
"""

from __future__ import annotations

import base64
import io
import os
from collections.abc import Sequence
from multiprocessing.reduction import ForkingPickler

import torch
from torch.multiprocessing import set_sharing_strategy

from saocli.errors import TrainerError

_SHM = "/dev/shm"


def share(tensors: Sequence[tuple[str, torch.Tensor]]) -> tuple[str, torch.Tensor]:
    """Copy `tensors`, all of one dtype and on the CPU, into one shared buffer, a file in /dev/shm.

    Returns a base64 pickle of (name, tensor) pairs that open it, which is what SGLang calls serialized named tensors,
    and the buffer, which must be kept until they have been read.

    Raises:
        TrainerError: /dev/shm has no room. Writing on regardless would end this process by SIGBUS.
    """
    dtype = tensors[0][1].dtype
    total = sum(tensor.numel() for _, tensor in tensors)
    _check_room(total * dtype.itemsize)
    # torch's default passes file descriptors, which only a process' own children can take.
    set_sharing_strategy("file_system")
    buffer = torch.empty(total, dtype=dtype).share_memory_()
    views, offset = [], 0
    for name, tensor in tensors:
        view = buffer[offset : offset + tensor.numel()].view(tensor.shape)
        view.copy_(tensor)
        views.append((name, view))
        offset += tensor.numel()
    file = io.BytesIO()
    ForkingPickler(file).dump(views)
    return base64.b64encode(file.getvalue()).decode(), buffer


def _check_room(size: int) -> None:
    status = os.statvfs(_SHM)
    if (free := status.f_bavail * status.f_frsize) < size:
        raise TrainerError(
            f"{_SHM} has {free / 2**20:.0f} MiB left, a bucket of weights takes {size / 2**20:.0f} MiB",
            fix="give it more (docker: --shm-size), or set engine.publish=disk",
        )
