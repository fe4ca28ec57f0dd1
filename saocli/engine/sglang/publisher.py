"""Publication to SGLang: check the folder, pause, bring the weights there, prove that they are there, go on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from saocli.config.engine import EngineConfig, Pause
from saocli.engine.publish import Control, load_from_disk
from saocli.engine.sglang.folder import check_fits, derived_names, stored_tensors
from saocli.engine.sglang.proof import Held, Prints, check, folder_prints, held_prints
from saocli.errors import EngineError, EngineLost
from saocli.stored import Stored

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
        self._asleep = False
        self._shape: tuple[Mapping[str, Stored], frozenset[str]] | None = None  # of what it was started with
        # Paused in place there are requests running, and SGLang refuses to flush; its prefix cache is off then.
        self._flush = config.pause is not Pause.IN_PLACE

    async def publish(self, engine: Control, folder: Path, version: str) -> None:
        """Raises EngineError if `folder` does not serve as `version` after `engine.publish_timeout_s` at most.

        EngineLost where the engine may not serve what it served before either.
        """
        try:
            async with asyncio.timeout(self._config.publish_timeout_s):
                await self._publish(engine, folder, version)
        except TimeoutError:
            raise EngineLost(
                f"publishing {version} took longer than {self._config.publish_timeout_s:g} s",
                fix="what the engine holds is not known now: start it again; or raise engine.publish_timeout_s",
            ) from None

    async def _publish(self, engine: Control, folder: Path, version: str) -> None:
        old = self._serving or await self._first(engine)
        try:
            prints = await asyncio.to_thread(self._checked, folder)
        except EngineError as error:
            if self._asleep:
                async with self._paused(engine):
                    await self._wake(engine)
                    await self._restore(engine, old, error)
            raise EngineError(f"{version} was not published: {error.message}", fix=_SERVES_ON) from error
        async with self._paused(engine):
            await self._wake(engine)
            try:
                await self._way.bring(engine, folder, version, flush_cache=self._flush)
                held = await held_prints(engine)
                self._prove(old, prints, held, version)
            except EngineError as error:
                await self._restore(engine, old, error)
                raise
        self._serving = _Serving(folder, version, prints, held)

    async def sleep(self, engine: Control) -> None:
        """`publish.Publisher`; what runs is retracted first, so that SGLang is idle. Raises EngineLost."""
        if self._asleep:
            return
        if self._serving is None:
            await self._first(engine)  # while there is something to hash
        try:
            async with asyncio.timeout(self._config.publish_timeout_s):
                await engine.command("/pause_generation", {"mode": Pause.RETRACT.value}, doing="pausing it")
                await engine.command("/release_memory_occupation", {}, doing="having it give its memory back")
        except (EngineError, TimeoutError) as error:
            why = error.message if isinstance(error, EngineError) else "no answer"
            raise EngineLost(f"the engine did not give its memory back: {why}", fix="start it again") from error
        self._asleep = True

    async def _wake(self, engine: Control) -> None:
        """Have it take its memory again; what it holds there is not defined."""
        if not self._asleep:
            return
        try:
            await engine.command("/resume_memory_occupation", {}, doing="having it take its memory again")
        except EngineError as error:
            why = f"the engine did not get its memory again: {error.message}"
            raise EngineLost(why, fix="see what else uses the GPU, or lower engine.slots") from error
        self._asleep = False

    async def _first(self, engine: Control) -> _Serving:
        folder, version = self._start
        # Kept, as the folder of an engine that was started again is a release, which retention removes one day.
        self._shape = stored_tensors(folder), derived_names(folder)
        prints = await asyncio.to_thread(folder_prints, self._shape[0])
        self._serving = _Serving(folder, version, prints, await held_prints(engine))
        return self._serving

    def _checked(self, folder: Path) -> Prints:
        """The folder's fingerprints, if it is whole and fits what SGLang was started with."""
        tensors = stored_tensors(folder)
        assert self._shape is not None, "_first came before"
        check_fits(folder, tensors, *self._shape)
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
            raise EngineLost(
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
                raise EngineLost("the engine did not go on after a pause", fix="start it again") from None
