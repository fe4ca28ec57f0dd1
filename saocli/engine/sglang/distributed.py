"""Weights over a process group: the trainer's first rank broadcasts, SGLang's ranks receive, in buckets.

Needs no disk between the two and no second copy: each bucket is sent from the trainer's tensors and copied in place.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any, Protocol

from saocli.broadcast import TensorSpec, buckets
from saocli.config.engine import EngineConfig
from saocli.config.trainer import Device
from saocli.engine.publish import Control
from saocli.engine.sglang.session import BUCKET_BYTES, agreed, close_update, open_update
from saocli.errors import EngineError, RunError


class Sender(Protocol):
    """The trainer's side, `broadcast.Broadcaster` over whatever lies between. Every method may raise RunError."""

    def joined(self) -> bool:
        """Whether the group of the last `join` is still there: its process may have been replaced since."""
        ...

    async def listen(self) -> tuple[str, int]:
        """Make ready for a new group, leaving an old one; returns the address and port where receivers meet."""
        ...

    async def join(self, *, world_size: int, group: str, backend: str) -> None:
        """Become rank 0; returns once the receivers have joined too."""
        ...

    async def specs(self) -> Sequence[TensorSpec]:
        """The weights to send now, in the order of sending."""
        ...

    async def send(self, first: int, last: int) -> None:
        """Broadcast those of [first, last)."""
        ...

    async def leave(self) -> None:
        """End the group."""
        ...


class FromGroup:
    """`publisher.Way`: the weights that the sender has now, which are those of the folder.

    The group is formed at the first publication and kept. It is formed anew after a failure, for another engine (one
    that was started again is another), and for another process behind the sender. What the sender takes longest must
    be well below `engine.publish_timeout_s`, so that there is time to undo. A sender that dies while SGLang waits for
    it to join leaves SGLang waiting: that publication runs into its timeout, and the engine must be started again.
    """

    def __init__(self, config: EngineConfig, sender: Sender, *, bucket_bytes: int = BUCKET_BYTES) -> None:
        self._sender = sender
        self._bucket_bytes = bucket_bytes
        self._world_size = 1 + config.tp
        self._backend = "gloo" if config.device is Device.CPU else "nccl"
        self._group: str | None = None  # None until joined
        self._receiver: Control | None = None  # who is in the group

    async def bring(self, engine: Control, folder: Path, version: str, *, flush_cache: bool) -> None:
        try:
            group = await self._joined(engine)
            await self._send_all(engine, group, version, flush_cache)
        except RunError as error:
            await self._leave(engine)
            if isinstance(error, EngineError):
                raise
            raise EngineError(f"{version} could not be sent to the engine: {error.message}", fix=error.fix) from error

    async def _joined(self, engine: Control) -> str:
        """The group that engine and sender are both in."""
        if self._group is not None:
            if engine is self._receiver and self._sender.joined():
                return self._group
            await self._leave(engine)
        return await self._join(engine)

    async def _join(self, engine: Control) -> str:
        self._group = group = f"weights-{secrets.token_hex(4)}"
        self._receiver = engine
        host, port = await self._sender.listen()
        body = {
            "master_address": host,
            "master_port": port,
            "rank_offset": 1,
            "world_size": self._world_size,
            "group_name": group,
            "backend": self._backend,
        }
        await _both(
            agreed(engine, "/init_weights_update_group", body, doing="joining the process group"),
            self._sender.join(world_size=self._world_size, group=group, backend=self._backend),
        )
        return group

    async def _send_all(self, engine: Control, group: str, version: str, flush_cache: bool) -> None:
        specs = await self._sender.specs()
        await open_update(engine)
        for first, last in buckets(specs, self._bucket_bytes):
            final = last == len(specs)
            body = {
                "names": [spec.name for spec in specs[first:last]],
                "dtypes": [spec.dtype for spec in specs[first:last]],
                "shapes": [spec.shape for spec in specs[first:last]],
                "group_name": group,
                # Once, with the last: nothing is generated in between.
                "flush_cache": flush_cache and final,
                "weight_version": version if final else None,
            }
            await _both(
                agreed(engine, "/update_weights_from_distributed", body, doing=f"receiving {version}"),
                self._sender.send(first, last),
            )
        await close_update(engine)

    async def _leave(self, engine: Control) -> None:
        """Leave no half of a group or of an update behind; the next publication makes new ones."""
        group, self._group, self._receiver = self._group, None, None
        with contextlib.suppress(RunError):
            await self._sender.leave()
        for path, body in (("/end_weight_update", {}), ("/destroy_weights_update_group", {"group_name": group})):
            with contextlib.suppress(EngineError):
                await engine.command(path, body, doing="ending a failed update")


async def _both(*halves: Coroutine[Any, Any, None]) -> None:
    """Run the two ends of one transfer; the first failure ends the waiting for the other."""
    tasks = [asyncio.ensure_future(half) for half in halves]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
