"""Servers behind SGLang's own router: it picks who answers a request, and all of them get the weights."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from saocli.engine.base import Engine, GenerateChunk, GenerateRequest
from saocli.engine.client import HttpEngine
from saocli.errors import EngineError


class Routed:
    """The `Engine` protocol over a running `sglang-router` and the servers behind it.

    The router sends a request again, to another server, when one fails. What comes of that is one answer of one server
    with that server's own spans and log-probs, a fresh sample like any other: nothing of the failed try is in it.
    """

    def __init__(self, router: HttpEngine, servers: Engine) -> None:
        """`router` hands requests to these servers, one or several: to those that it was told are `behind` it."""
        self._router = router
        self._servers = servers

    @property
    def up(self) -> bool:
        """Whether the router is there: without it nothing is generated."""
        return self._router.up

    def generate(self, request: GenerateRequest) -> AsyncIterator[GenerateChunk]:
        """By whichever server the router picks. Raises EngineError."""
        return self._router.generate(request)

    async def load(self, folder: Path, version: str) -> None:
        """On all servers or none. Raises EngineError."""
        await self._servers.load(folder, version)

    async def version(self) -> str:
        """Raises EngineError when the servers do not agree, or one of them is down."""
        return await self._servers.version()

    async def close(self) -> None:
        await self._router.close()
        await self._servers.close()


async def check_workers(url: str, servers: Sequence[str], *, key: str | None) -> None:
    """See that the router at `url` has exactly these servers.

    One that it has beside them would get no weights and answer with old ones; one that it lacks would never be asked.

    Raises EngineError that names those, or says that no router answers there.
    """
    url = url.rstrip("/")
    router = HttpEngine(url, key=key)
    try:
        known = await router.workers()
    except EngineError as error:
        raise EngineError(
            f"engine.router is {url}, which does not say who its workers are: {error.message}",
            fix="it must be the address of a running sglang-router that takes the token in engine.key_env",
        ) from error
    finally:
        await router.close()
    theirs, ours = ({server.rstrip("/") for server in each} for each in (known, servers))
    wrong = [
        f"{what} {', '.join(sorted(which))}"
        for what, which in (("engine.urls lacks", theirs - ours), ("the router lacks", ours - theirs))
        if which
    ]
    if wrong:
        raise EngineError(
            f"the router at {url} has other workers than engine.urls: {'; '.join(wrong)}",
            fix="a server that is in one alone would serve old weights or nothing: name the same, letter by letter",
        )
