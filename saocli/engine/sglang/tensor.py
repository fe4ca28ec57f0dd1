"""Weights as shared memory: the trainer's first rank puts a bucket where SGLang, on its machine, reads it in place.

No network and no disk between the two: a file in /dev/shm on a CPU, the trainer's own GPU memory (CUDA IPC) on GPUs.
SGLang unpickles what it is sent here, with an allow-list of its own; its admin key, which only this program has, opens
that route.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from saocli.broadcast import TensorSpec, buckets
from saocli.engine.publish import Control
from saocli.engine.sglang.session import BUCKET_BYTES, agreed, close_update, open_update
from saocli.errors import EngineError, RunError


class Sharer(Protocol):
    """The trainer's side. Every method may raise RunError."""

    async def specs(self) -> Sequence[TensorSpec]:
        """The weights to share now, in their order."""
        ...

    async def share(self, first: int, last: int, *, readers: int) -> Sequence[str]:
        """Share those of [first, last) until the next call.

        Returns what opens them, SGLang's serialized tensors, once for each process that reads them.
        """
        ...

    async def leave(self) -> None:
        """Let go of everything."""
        ...


class FromMemory:
    """`publisher.Way`: the weights that the sharer has now, which are those of the folder."""

    def __init__(self, sharer: Sharer, *, readers: int, bucket_bytes: int = BUCKET_BYTES) -> None:
        """`readers`: SGLang's tensor-parallel ranks, each of which opens every bucket and takes its part."""
        self._sharer = sharer
        self._readers = readers
        self._bucket_bytes = bucket_bytes

    async def bring(self, engine: Control, folder: Path, version: str, *, flush_cache: bool) -> None:
        try:
            await self._share_all(engine, version, flush_cache)
        except RunError as error:
            with contextlib.suppress(EngineError):
                await engine.command("/end_weight_update", {}, doing="ending a failed update")
            if isinstance(error, EngineError):
                raise
            raise EngineError(
                f"{version} could not be shared with the engine: {error.message}", fix=error.fix
            ) from error
        finally:
            with contextlib.suppress(RunError):
                await self._sharer.leave()

    async def _share_all(self, engine: Control, version: str, flush_cache: bool) -> None:
        specs = await self._sharer.specs()
        await open_update(engine)
        for first, last in buckets(specs, self._bucket_bytes):
            final = last == len(specs)
            body = {
                "serialized_named_tensors": list(await self._sharer.share(first, last, readers=self._readers)),
                # Once, with the last: nothing is generated in between.
                "flush_cache": flush_cache and final,
                "weight_version": version if final else None,
            }
            await agreed(engine, "/update_weights_from_tensor", body, doing=f"reading {version}")
        await close_update(engine)
