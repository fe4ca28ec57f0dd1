"""The trainer as a sender of weights, whichever process that is now. Fits what the engine's publishers ask for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from saocli.broadcast import TensorSpec
from saocli.config.trainer import DType
from saocli.errors import TrainerError
from saocli.trainer.channel import Message
from saocli.trainer.remote import RemoteTrainer

GRACE_S = 5.0  # between the worker's own timeout and taking it for hung


class TrainerSender:
    """Commands to the current trainer's ranks, see `megatron.sending`. All may raise TrainerError or ProcessDied.

    An operation of the group that takes longer than `timeout_s` fails in the worker. One that does not even fail, as
    NCCL's can, ends the trainer: it would never take another command.
    """

    def __init__(self, trainer: Callable[[], RemoteTrainer | None], *, dtype: DType, timeout_s: float) -> None:
        """`trainer` looks up the one that runs now; `dtype` is what is sent, rounded as an export rounds."""
        self._trainer = trainer
        self._dtype = dtype
        self._timeout_s = timeout_s
        self._member: RemoteTrainer | None = None  # who is in the group

    def joined(self) -> bool:
        return self._member is not None and self._member is self._trainer()

    async def listen(self) -> tuple[str, int]:
        answer = await self._ask("listen", timeout_s=self._timeout_s)
        return str(answer["host"]), int(answer["port"])

    async def join(self, *, world_size: int, group: str, backend: str) -> None:
        trainer = self._trainer()
        await self._ask("join", world_size=world_size, group=group, backend=backend)
        self._member = trainer

    async def specs(self) -> Sequence[TensorSpec]:
        answer = await self._ask("specs", dtype=self._dtype.value)
        return [TensorSpec(name=name, dtype=dtype, shape=tuple(shape)) for name, dtype, shape in answer["specs"]]

    async def send(self, first: int, last: int) -> None:
        await self._ask("send", first=first, last=last)

    async def share(self, first: int, last: int, *, readers: int) -> Sequence[str]:
        return [
            str(payload) for payload in (await self._ask("share", first=first, last=last, readers=readers))["payloads"]
        ]

    async def leave(self) -> None:
        self._member = None
        await self._ask("leave")

    async def _ask(self, command: str, **values: Any) -> Message:
        trainer = self._trainer()
        if trainer is None:
            raise TrainerError("there is no trainer whose weights could be sent")
        return await trainer.transfer(command, within_s=self._timeout_s + GRACE_S, **values)
