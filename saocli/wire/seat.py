"""The run's trainer, whichever process it is now."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from saocli.process import Child
from saocli.trainer.remote import RemoteTrainer


class Seat:
    """Holds one trainer at a time; a new one has the base model and nothing else."""

    def __init__(self, start: Callable[[], Awaitable[RemoteTrainer]]) -> None:
        self.restarts = -1  # the first start is none
        self._start = start
        self._trainer: RemoteTrainer | None = None

    @property
    def trainer(self) -> RemoteTrainer:
        assert self._trainer is not None, "fill() starts it"
        return self._trainer

    @property
    def current(self) -> RemoteTrainer | None:
        """The trainer, or None before the first one has started."""
        return self._trainer

    @property
    def child(self) -> Child:
        return self.trainer.child

    @property
    def dead(self) -> bool:
        """Whether its process has ended."""
        return self.child.returncode is not None

    async def fill(self) -> None:
        """Start a trainer; whoever was here is ended first. Raises what starting one raises."""
        await self.close()
        self._trainer = await self._start()
        self.restarts += 1

    async def close(self) -> None:
        if self._trainer is not None:
            await self._trainer.close()

    def processes(self) -> Mapping[str, Mapping[str, Any]]:
        """By name, for people."""
        if self._trainer is None:
            return {}
        return {self.child.name: {"pid": self.child.pid, "alive": not self.dead, "restarts": self.restarts}}
