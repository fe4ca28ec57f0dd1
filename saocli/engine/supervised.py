"""An engine that comes back: when its process dies, it is started again with the weights that served last."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from pathlib import Path
from typing import NoReturn, Protocol, cast

from saocli.engine.base import Engine, GenerateChunk, GenerateRequest
from saocli.errors import EngineError, EngineLost, EngineRestarting, ProcessDied, RunError, SaoError
from saocli.process import Child

GOOD = 100  # generations by which an engine that was started again has shown that it lives
_PAUSE_S = 1.0  # before the second restart in a row, doubled for each further one
_EXIT_GRACE_S = 2.0  # a server whose worker died takes a moment to follow


class Server(Engine, Protocol):
    """An engine that is a process of ours (`client.HttpEngine`)."""

    @property
    def child(self) -> Child | None: ...

    async def sleep(self) -> None: ...

    async def disconnect(self) -> None:
        """Drop all connections; the process stays as it is."""
        ...


Start = Callable[[Path, str], Awaitable[Server]]  # (HF folder, version) → a server that serves it as that


class SupervisedEngine:
    """The `Engine` protocol over a process that is started again, with the weights that served last, when it dies.

    A generation that was running then, and those that are asked for until the engine is back, end with
    EngineRestarting: nothing is sent twice from here. `load` waits for the engine to be back. A publication that the
    engine dies of is made again on the next one, so that it serves either the old weights or the new ones, each under
    its own version, and whoever published need not know.

    `restarts` in a row are made, after a pause from the second on; the count starts over with every publication, and
    once the engine has ended `GOOD` generations since. Then the engine is given up: every call raises ProcessDied, and
    so does `given_up`.
    """

    def __init__(
        self, server: Server, start: Start, *, folder: Path, version: str, restarts: int, tell: Callable[[str], None]
    ) -> None:
        """`server` serves `folder` as `version`, as does what `start` starts. `tell` gets a line for each restart."""
        self.name = _child(server).name
        self.restarts = 0  # made so far
        self._start = start
        self._folder = folder
        self._version = version
        self._limit = restarts
        self._tell = tell
        self._used = 0
        self._good = 0
        self._loading = asyncio.Lock()
        self._serving: asyncio.Future[Server] = asyncio.Future()  # pending while the engine is down
        self._serving.set_result(server)
        self._supervisor = asyncio.create_task(self._supervise())

    @classmethod
    async def begin(
        cls, start: Start, *, folder: Path, version: str, restarts: int, tell: Callable[[str], None]
    ) -> SupervisedEngine:
        """Start the first one; that it fails to start is the end."""
        return cls(await start(folder, version), start, folder=folder, version=version, restarts=restarts, tell=tell)

    @property
    def up(self) -> bool:
        """Whether it is there."""
        return self.pid is not None

    @property
    def pid(self) -> int | None:
        """Its process; None while there is none."""
        serving = self._serving  # asked from other threads too
        if not serving.done() or serving.exception() is not None:
            return None
        child = _child(serving.result())
        return child.pid if child.returncode is None else None

    async def given_up(self) -> NoReturn:
        """Raises ProcessDied, with the end of the log, once the engine is dead and no restart is left."""
        await asyncio.shield(self._supervisor)
        raise AssertionError("the supervisor never returns")

    async def generate(self, request: GenerateRequest) -> AsyncIterator[GenerateChunk]:
        server = self._now()
        try:
            async with aclosing(cast(AsyncGenerator[GenerateChunk, None], server.generate(request))) as chunks:
                async for chunk in chunks:
                    yield chunk
        except ProcessDied as error:
            self._gone(server)
            raise EngineRestarting(f"the {self.name} died while it answered and is being started again") from error
        self._good += 1
        if self._good == GOOD:
            self._used = 0

    async def load(self, folder: Path, version: str) -> None:
        """Raises EngineError when the engine lives and refuses: the old weights serve on."""
        async with self._loading:
            for _ in range(2 + self._limit):
                server = await asyncio.shield(self._serving)
                try:
                    await server.load(folder, version)
                except RunError as error:
                    if not await self._died_of(error, server):
                        raise
                    continue
                # Unless it died with the answer, and the next one is being started with what served before.
                if self._serving.done() and self._serving.result() is server:
                    self._folder, self._version, self._used = folder, version, 0
                    return
            raise EngineError(f"{version} could not be loaded: the {self.name} died of it each time")

    async def sleep(self) -> None:
        """Have it give its GPU memory back; whatever is asked waits for the next `load`. One that dies has none.

        Waits for one that is being started again. Raises EngineError when it lives and refuses.
        """
        async with self._loading:
            server = await asyncio.shield(self._serving)
            try:
                await server.sleep()
            except RunError as error:
                if not await self._died_of(error, server):
                    raise

    async def version(self) -> str:
        try:
            return await self._now().version()
        except ProcessDied as error:
            raise EngineRestarting(f"the {self.name} died and is being started again") from error

    async def close(self) -> None:
        self._supervisor.cancel()
        await asyncio.wait({self._supervisor})
        if not self._supervisor.cancelled():
            self._supervisor.exception()  # whoever waits for `given_up` has it
        if self._serving.done() and self._serving.exception() is None:
            await self._serving.result().close()

    def _now(self) -> Server:
        """The one that serves. Raises EngineRestarting, or ProcessDied once it is given up."""
        if not self._serving.done():
            raise EngineRestarting(f"the {self.name} is being started again")
        return self._serving.result()

    async def _died_of(self, error: RunError, server: Server) -> bool:
        """Whether the engine is gone after this error; it is ended here when nobody knows what it holds."""
        if isinstance(error, EngineLost):
            self._tell(f"{error.message.splitlines()[0]}: ending the {self.name}")
            await _child(server).stop()
        elif not await _ended(server):
            return False
        self._gone(server)
        return True

    def _gone(self, server: Server) -> None:
        """It is dead, whoever sees it first."""
        serving = self._serving
        if serving.done() and serving.exception() is None and serving.result() is server:
            self._serving = asyncio.Future()

    async def _supervise(self) -> NoReturn:
        while True:
            server = self._serving.result()
            await _child(server).wait()
            self._gone(server)
            try:
                died = _child(server).died("serving")
                await _child(server).stop()  # what it started may have outlived it
                self._serving.set_result(await self._again(died))
            except SaoError as error:
                self._serving.set_exception(error)
                self._serving.exception()  # there may be nobody to retrieve it
                raise
            finally:
                await server.disconnect()

    async def _again(self, why: ProcessDied) -> Server:
        """Start it with the weights that served last. Raises ProcessDied when that cannot be done any more."""
        while self._used < self._limit:
            if self._used:
                await asyncio.sleep(_PAUSE_S * 2 ** (self._used - 1))
            self._used += 1
            self._good = 0
            self.restarts += 1
            cause = why.message.splitlines()[0]
            self._tell(f"{cause}: starting it again with {self._version} ({self._used} of {self._limit} in a row)")
            try:
                return await self._verified()
            except ProcessDied as error:
                why = error
        if self._limit == 0:
            raise why
        row = f"restarts in a row: {self._used}, all that engine.restarts allows"
        raise ProcessDied(why.message, fix=f"{why.fix}; {row}")

    async def _verified(self) -> Server:
        """A new one, which serves what it should. Raises ProcessDied when it does not come so far."""
        server = await self._start(self._folder, self._version)
        try:
            if (serves := await server.version()) != self._version:
                raise EngineError(f"the {self.name} was started with {self._version} and serves {serves}")
        except BaseException:
            await server.close()
            raise
        return server


def _child(server: Server) -> Child:
    assert server.child is not None, "it is a process of ours"
    return server.child


async def _ended(server: Server) -> bool:
    """Whether its process is gone, or is going."""
    try:
        await asyncio.wait_for(_child(server).wait(), _EXIT_GRACE_S)
    except TimeoutError:
        return False
    return True
