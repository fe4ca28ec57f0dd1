"""Sending weights over a process group to engines that receive them: the sender's side of SGLang's weight updates.

Row 0: the trainer's first rank sends, the engine's publisher says what and when; neither knows the other. Torch is
imported on use, as the publisher lives in a process without it.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from math import prod
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorSpec:
    """What a receiver must know of a tensor to make room for it."""

    name: str  # Hugging Face name
    dtype: str  # torch's: float32 | bfloat16 | float16
    shape: tuple[int, ...]

    @property
    def bytes(self) -> int:
        return prod(self.shape) * _BYTES[self.dtype]


def specs_of(tensors: Iterable[tuple[str, Tensor]]) -> tuple[TensorSpec, ...]:
    """The specs of (name, tensor) pairs, in their order, which is the order of sending."""
    return tuple(
        TensorSpec(name=name, dtype=str(tensor.dtype).removeprefix("torch."), shape=tuple(tensor.shape))
        for name, tensor in tensors
    )


def buckets(specs: Sequence[TensorSpec], limit: int) -> list[tuple[int, int]]:
    """Cut [0, n) into ranges [first, last) of at most `limit` bytes; a tensor larger than that is alone."""
    ranges: list[tuple[int, int]] = []
    first = size = 0
    for index, spec in enumerate(specs):
        if index > first and size + spec.bytes > limit:
            ranges.append((first, index))
            first, size = index, 0
        size += spec.bytes
    return [*ranges, (first, len(specs))] if specs else ranges


class Broadcaster:
    """Rank 0 of a process group; the others are receivers. Errors are torch's (RuntimeError and its kin)."""

    def __init__(self, host: str, *, timeout_s: float) -> None:
        """Listen on a free port of `host`; an operation that takes longer than `timeout_s` fails."""
        from torch.distributed import TCPStore

        self._timeout = timedelta(seconds=timeout_s)
        self._group: Any = None
        self.host = host
        # Left to itself the store listens on every address of this machine.
        listener = socket.create_server((host, 0))
        self.port: int = listener.getsockname()[1]
        self._store = TCPStore(
            host,
            self.port,
            None,
            True,
            self._timeout,
            wait_for_workers=False,
            master_listen_fd=listener.detach(),
        )

    def join(self, *, world_size: int, group: str, backend: str) -> None:
        """Form the group with `world_size` − 1 receivers, who must join `group` at this host and port meanwhile.

        `backend`: nccl (tensors on GPUs) or gloo. Like torch's `init_process_group`, but for one group of many: this
        process keeps its default group.
        """
        from torch.distributed import Backend, PrefixStore
        from torch.distributed.distributed_c10d import _new_process_group_helper, _world

        self._group, _ = _new_process_group_helper(
            world_size,
            0,
            [],
            Backend(backend),
            PrefixStore(group, self._store),
            group_name=group,  # type: ignore[arg-type]
            timeout=self._timeout,
        )
        _world.pg_group_ranks[self._group] = {rank: rank for rank in range(world_size)}

    def send(self, tensors: Iterable[Tensor]) -> None:
        """Broadcast each, in order; returns once all have been sent."""
        from torch import cuda
        from torch.distributed import broadcast

        sent = [tensor.contiguous() for tensor in tensors]
        works = [broadcast(tensor, 0, group=self._group, async_op=True) for tensor in sent]
        for work in works:
            work.wait()
        if any(tensor.is_cuda for tensor in sent):
            cuda.synchronize()  # NCCL's `wait` only holds up the stream

    def leave(self) -> None:
        """End the group. Safe to call twice."""
        from torch.distributed import destroy_process_group

        if self._group is not None:
            group, self._group = self._group, None
            destroy_process_group(group)
