"""Publication to SGLang: check the folder, pause, bring the weights there, prove that they are there, go on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from saocli.config.engine import EngineConfig, Pause
from saocli.engine.publish import Control, load_from_disk
from saocli.engine.sglang.folder import check_fits, derived_names, stored_tensors
from saocli.engine.sglang.proof import Held, Prints, check, folder_prints, held_prints
from saocli.errors import EngineError

_CONTINUE_S = 10.0
_SERVES_ON = "the previous weights serve on; check the folder's safetensors"


class Way(Protocol):
    """How weights get into a paused SGLang."""

    async def bring(self, engine: Control, folder: Path, version: str, *, flush_cache: bool) -> None:
        """Overwrite SGLang's weights by those of `folder`, to serve as `version`. Raises EngineError.

        After an error SGLang may hold anything.
        """
        ...


class FromFolder:
    """SGLang reads the folder's safetensors."""

    async def bring(self, engine: Control, folder: Path, version: str, *, flush_cache: bool) -> None:
        await load_from_disk(engine, folder, version, flush_cache=flush_cache)


@dataclass(frozen=True)
class _Serving:
    """What SGLang holds, as far as is known."""

    folder: Path
    version: str
    prints: Prints
    held: Held


class PausedPublisher:
    """`publish.Publisher` for SGLang. Requests that come meanwhile wait; what runs is treated by `engine.pause`."""

    def __init__(self, config: EngineConfig, way: Way, *, folder: Path, version: str) -> None:
        """`folder` and `version` are what SGLang was started with."""
        self._config = config
        self._way = way
        self._start = folder, version
        self._serving: _Serving | None = None  # hashed when first needed
        # Paused in place there are requests running, and SGLang refuses to flush; its prefix cache is off then.
        self._flush = config.pause is not Pause.IN_PLACE

    async def publish(self, engine: Control, folder: Path, version: str) -> None:
        """Raises EngineError if `folder` does not serve as `version` after `engine.publish_timeout_s` at most."""
        try:
            async with asyncio.timeout(self._config.publish_timeout_s):
                await self._publish(engine, folder, version)
        except TimeoutError:
            raise EngineError(
                f"publishing {version} took longer than {self._config.publish_timeout_s:g} s",
                fix="what the engine holds is not known now: start it again; or raise engine.publish_timeout_s",
            ) from None

    async def _publish(self, engine: Control, folder: Path, version: str) -> None:
        old = self._serving or await self._first(engine)
        try:
            prints = await asyncio.to_thread(self._checked, folder)
        except EngineError as error:
            raise EngineError(f"{version} was not published: {error.message}", fix=_SERVES_ON) from error
        async with self._paused(engine):
            try:
                await self._way.bring(engine, folder, version, flush_cache=self._flush)
                held = await held_prints(engine)
                self._prove(old, prints, held, version)
            except EngineError as error:
                await self._restore(engine, old, error)
                raise
        self._serving = _Serving(folder, version, prints, held)

    async def _first(self, engine: Control) -> _Serving:
        folder, version = self._start
        prints = await asyncio.to_thread(lambda: folder_prints(stored_tensors(folder)))
        self._serving = _Serving(folder, version, prints, await held_prints(engine))
        return self._serving

    def _checked(self, folder: Path) -> Prints:
        """The folder's fingerprints, if it is whole and fits what SGLang was started with."""
        tensors = stored_tensors(folder)
        check_fits(folder, tensors, stored_tensors(self._start[0]), derived_names(self._start[0]))
        return folder_prints(tensors)

    def _prove(self, old: _Serving, new: Prints, held: Held, version: str) -> None:
        wrong = check(self._config.dtype, old.prints, new, old.held, held)
        if wrong:
            raise EngineError(f"after loading {version} the engine holds other weights in {', '.join(wrong[:4])}")

    async def _restore(self, engine: Control, old: _Serving, why: EngineError) -> None:
        """Have the engine, still paused, hold what it served before."""
        try:
            await load_from_disk(engine, old.folder, old.version, flush_cache=self._flush)
            if await held_prints(engine) != old.held:
                raise EngineError(f"its checksums are not those of {old.version}")
        except EngineError as error:
            raise EngineError(
                f"{why.message}; and {old.version} could not be loaded again: {error.message}",
                fix="what the engine holds is not known now: start it again",
            ) from error

    @asynccontextmanager
    async def _paused(self, engine: Control) -> AsyncIterator[None]:
        await engine.command("/pause_generation", {"mode": self._config.pause.value}, doing="pausing it")
        try:
            yield
        finally:
            try:
                async with asyncio.timeout(_CONTINUE_S):
                    await engine.command("/continue_generation", {}, doing="letting it go on")
            except TimeoutError:
                raise EngineError("the engine did not go on after a pause", fix="start it again") from None
