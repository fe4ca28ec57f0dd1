"""Trainer and engine on the same GPUs, in turns: the one owner of who holds the memory when.

    engine sleeps (requests wait) → the trainer steps → weights on disk → the engine wakes with them (requests go on)

The trainer keeps its weights and optimizer states all the time; what it needs for a step is the engine's between two
steps. A sleeping engine is woken by the weights it loads: the new ones where a step made some, else those it had, also
after a step that failed. A process that has to be started again waits until the trainer is done.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Protocol

from saocli.engine.base import Engine, GenerateChunk, GenerateRequest
from saocli.errors import SaoError
from saocli.trainer.base import Trainer
from saocli.types import Batch, StepOutput


class Sleeper(Engine, Protocol):
    """An engine that can do without its GPU memory for a while."""

    async def sleep(self) -> None:
        """Give it back; whatever is asked waits for the next `load`. An engine that died has none.

        Raises EngineError, ProcessDied.
        """
        ...


class Turns:
    """What those who use the GPUs have to agree on."""

    def __init__(self) -> None:
        self.asleep = False
        self._gpus = asyncio.Lock()

    @asynccontextmanager
    async def starting(self) -> AsyncIterator[None]:
        """While an engine's process starts: then it is awake."""
        async with self._gpus:
            yield
            self.asleep = False

    @asynccontextmanager
    async def training(self) -> AsyncIterator[bool]:
        """While the trainer works; says whether the engine sleeps, which no start changes meanwhile."""
        async with self._gpus:
            yield self.asleep


class ColocatedEngine:
    """`engine.base.Engine`; gives the memory to whoever asks for room."""

    def __init__(self, engine: Sleeper, turns: Turns, *, folder: Path, version: str) -> None:
        """`engine` serves `folder` as `version`; its processes start within `turns.starting()`."""
        self._engine = engine
        self._turns = turns
        self._folder = folder
        self._version = version

    def generate(self, request: GenerateRequest) -> AsyncIterator[GenerateChunk]:
        return self._engine.generate(request)

    async def load(self, folder: Path, version: str) -> None:
        try:
            await self._engine.load(folder, version)
        finally:
            self._turns.asleep = False  # loaded or refused: awake
        self._folder, self._version = folder, version

    async def version(self) -> str:
        return await self._engine.version()

    async def close(self) -> None:
        await self._engine.close()

    async def wake(self) -> None:
        """Serve again what it served before it fell asleep. Its memory held nothing meanwhile."""
        if self._turns.asleep:
            await self.load(self._folder, self._version)

    @property
    def asleep(self) -> bool:
        return self._turns.asleep

    @asynccontextmanager
    async def room(self) -> AsyncIterator[None]:
        """Within, the engine sleeps. Afterwards it still does, unless there was an error."""
        while True:
            if not self._turns.asleep:
                self._turns.asleep = True
                try:
                    await self._engine.sleep()
                except SaoError:
                    self._turns.asleep = False
                    raise
            async with self._turns.training() as asleep:
                if not asleep:
                    continue  # it died, and was started again while we waited
                try:
                    yield
                    return
                except SaoError as error:
                    failure = error
            await self.wake()
            raise failure


class ColocatedTrainer:
    """`trainer.base.Trainer` whose engine sleeps while it works."""

    def __init__(self, trainer: Trainer, engine: ColocatedEngine) -> None:
        self._trainer = trainer
        self._engine = engine

    async def step(self, batch: Batch) -> StepOutput:
        """New weights are exported and loaded next, which wakes the engine; without any it is woken here."""
        async with self._engine.room():
            output = await self._trainer.step(batch)
        if not output.actor_trained:
            await self._engine.wake()
        return output

    async def export(self, folder: Path) -> str:
        try:
            return await self._trainer.export(folder)
        except SaoError:
            await self._engine.wake()
            raise

    async def digest(self) -> str:
        """Asked after steps that were made again, whose weights nobody loads."""
        await self._engine.wake()
        return await self._trainer.digest()

    async def save(self, folder: Path) -> None:
        async with self._apart():
            await self._trainer.save(folder)

    async def load(self, folder: Path) -> None:
        async with self._apart():
            await self._trainer.load(folder)

    async def close(self) -> None:
        await self._trainer.close()

    @asynccontextmanager
    async def _apart(self) -> AsyncIterator[None]:
        """Within, the engine sleeps; afterwards it is as it was before."""
        slept = self._engine.asleep
        async with self._engine.room():
            yield
        if not slept:
            await self._engine.wake()
