"""Several engines of one model as one: who answers a request, and weights that reach all of them or none."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Protocol, cast

from saocli.engine.base import Engine, GenerateChunk, GenerateRequest
from saocli.errors import EngineError, EngineRestarting, RunError

SESSIONS = 4096  # remembered; the one that was quiet for longest is forgotten first


class Replica(Engine, Protocol):
    """An engine that says whether it is there."""

    @property
    def up(self) -> bool:
        """False while it cannot be asked."""
        ...


class Replicas:
    """The `Engine` protocol over several engines.

    A request goes to the engine that runs the fewest, among equals to the one that has been asked the least. The calls
    of one session stay with one engine for as long as that is up, since it has their common prefix in its cache.

    While weights change, some engines answer with the new ones and some with the old. Each says so itself: the spans
    of an answer are its engine's own, so no answer carries another version than the one that sampled it.
    """

    def __init__(self, engines: Sequence[Replica], *, folder: Path, version: str) -> None:
        """All of them serve `folder` as `version`."""
        self._engines = tuple(engines)
        self._serving = folder, version
        self._running = [0] * len(self._engines)
        self._asked = [0] * len(self._engines)
        self._homes: OrderedDict[str, int] = OrderedDict()

    @property
    def up(self) -> bool:
        """Whether any of them is there."""
        return any(engine.up for engine in self._engines)

    async def generate(self, request: GenerateRequest) -> AsyncIterator[GenerateChunk]:
        """Raises EngineRestarting when none of them is up."""
        index = self._choose(request.session)
        self._running[index] += 1
        self._asked[index] += 1
        try:
            chunks = cast(AsyncGenerator[GenerateChunk, None], self._engines[index].generate(request))
            async with aclosing(chunks):
                async for chunk in chunks:
                    yield chunk
        finally:
            self._running[index] -= 1

    async def load(self, folder: Path, version: str) -> None:
        """Load on all at once. If any of them fails, those that succeeded are given the old weights again.

        Raises EngineError that names each engine that failed, in either direction.
        """
        failed = await self._load(range(len(self._engines)), folder, version)
        if not failed:
            self._serving = folder, version
            return
        old_folder, old_version = self._serving
        stuck = await self._load([i for i in range(len(self._engines)) if i not in failed], old_folder, old_version)
        message = f"{version} was not published: {self._said(failed)}"
        if stuck:
            raise EngineError(
                f"{message}; and {old_version} could not be loaded again: {self._said(stuck)}",
                fix="the engines serve different weights now: start them again",
            )
        raise EngineError(message, fix=f"all of them serve {old_version}")

    async def version(self) -> str:
        """Raises EngineError when they do not agree, or one of them is down."""
        versions = await asyncio.gather(*(engine.version() for engine in self._engines))
        if len(set(versions)) > 1:
            each = ", ".join(f"engine {i + 1}: {version}" for i, version in enumerate(versions))
            raise EngineError(f"the engines serve different weights ({each})")
        return versions[0]

    async def close(self) -> None:
        await asyncio.gather(*(engine.close() for engine in self._engines))

    def _choose(self, session: str | None) -> int:
        there = [index for index, engine in enumerate(self._engines) if engine.up]
        if not there:
            raise EngineRestarting(f"none of the {len(self._engines)} engines is up now")
        home = self._homes.get(session) if session is not None else None
        if home is None or home not in there:
            home = min(there, key=lambda index: (self._running[index], self._asked[index]))
        if session is not None:
            self._homes[session] = home
            self._homes.move_to_end(session)
            if len(self._homes) > SESSIONS:
                self._homes.popitem(last=False)
        return home

    async def _load(self, indices: Sequence[int], folder: Path, version: str) -> dict[int, RunError]:
        """Load on these; returns what those that failed said."""
        results = await asyncio.gather(
            *(self._engines[index].load(folder, version) for index in indices), return_exceptions=True
        )
        failed = {}
        for index, result in zip(indices, results, strict=True):
            if isinstance(result, RunError):
                failed[index] = result
            elif isinstance(result, BaseException):
                raise result
        return failed

    def _said(self, failed: dict[int, RunError]) -> str:
        return "; ".join(f"engine {index + 1} of {len(self._engines)}: {e.message}" for index, e in failed.items())
