"""Generations through a real sglang-router; weights, aborts and all else past it, to each server."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import signal
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import pytest
import pytest_asyncio
from enginekit import ask, final, llama, plain_logprobs, save
from routerkit import NEEDS_ROUTER, router

from saocli.config.engine import EngineConfig
from saocli.config.run import RunConfig
from saocli.engine.base import GenerateChunk, GenerateRequest
from saocli.engine.client import HttpEngine
from saocli.engine.embedded.launch import start_embedded
from saocli.engine.router import Routed, check_workers
from saocli.errors import ContextLengthExceeded, EngineError
from saocli.process import Child
from saocli.types import Span
from saocli.wire.engines import Engines, open_engines

KEY = "k" * 43
PROMPT = tuple(b"What is 2 + 2?")
SLOTS = 4
shared = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Weights of one architecture that never ends by itself."""
    root = tmp_path_factory.mktemp("weights")
    return [save(llama(seed, eos_token_id=None), root / f"v{seed}") for seed in range(3)]


async def embedded(folder: Path, log: Path, slots: int, *, version: str) -> HttpEngine:
    config = EngineConfig(threads=1, slots=slots)
    return await start_embedded(config, model_folder=folder, version=version, context_length=2048, seed=0, log=log)


@dataclass(frozen=True)
class Fleet:
    """Two of somebody's servers, their router, and the engines of a run that uses them."""

    theirs: list[HttpEngine]
    router: Child
    engines: Engines

    async def name(self, folder: Path) -> None:
        """Have each serve `folder` under its own name: the spans of an answer say then who gave it."""
        await asyncio.gather(*(server.load(folder, name) for name, server in zip("ab", self.theirs, strict=True)))


async def opened(config: EngineConfig, folder: Path) -> Engines:
    run = RunConfig(name="t", scenario="s", context_length=2048, engine=config)
    return await open_engines(
        run, folder=folder, version="s@0", logs=folder, progress=lambda _: None, say=lambda _: None
    )


@asynccontextmanager
async def running(folder: Path, logs: Path, policy: str) -> AsyncIterator[Fleet]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ROUTER_KEY", KEY)
        with pytest.MonkeyPatch.context() as one_key:  # each makes a key of its own otherwise
            one_key.setattr(secrets, "token_urlsafe", lambda length: KEY)
            one_key.setattr(secrets, "token_hex", lambda length: KEY)
            theirs = await asyncio.gather(
                *(embedded(folder, logs / f"{name}.log", SLOTS, version=name) for name in ("one", "other"))
            )
        try:
            async with router([server.url for server in theirs], logs / "router.log", KEY, policy) as (url, child):
                urls = [server.url + "/" for server in theirs]
                named = EngineConfig(threads=1, urls=urls, router=url + "/", key_env="ROUTER_KEY")
                engines = await opened(named, folder)
                yield Fleet(theirs, child, engines)
                await engines.engine.close()
        finally:
            await asyncio.gather(*(server.close() for server in theirs))


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=[pytest.param("embedded", marks=NEEDS_ROUTER)])
async def fleet(folders: list[Path], tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Fleet]:
    async with running(folders[0], tmp_path_factory.mktemp("logs"), "manual") as fleet:
        yield fleet


def gap(folder: Path, chunk: GenerateChunk, span: Span) -> float:
    """Largest difference, in nats, between a span's log-probs and those of the folder's weights."""
    expected = plain_logprobs(folder, PROMPT, chunk.output_ids, 1.0)[span.start : span.end]
    got = chunk.logprobs[span.start : span.end]
    return max(abs(a - b) for a, b in zip(got, expected, strict=True) if a is not None)


@shared
async def test_the_engines_say_what_they_are(fleet: Fleet) -> None:
    one, other = (server.url for server in fleet.theirs)
    assert fleet.engines.router is not None
    url = fleet.engines.router.url
    assert fleet.engines.detail == f"2 servers behind {url}"
    assert fleet.engines.down is None
    assert fleet.engines.processes() == {
        name: {"pid": None, "alive": True} for name in (f"engine at {one}", f"engine at {other}", f"router at {url}")
    }


@shared
async def test_both_answer_each_with_its_own_version_and_weights_reach_both(fleet: Fleet, folders: list[Path]) -> None:
    engine = fleet.engines.engine
    await fleet.name(folders[0])
    with pytest.raises(EngineError, match="engine 1: a, engine 2: b"):
        await engine.version()
    chunks = await asyncio.gather(*(final(engine, ask(PROMPT, stream=n % 2 == 0, max_new_tokens=8)) for n in range(24)))
    assert all(len(chunk.spans) == 1 for chunk in chunks)
    of_each = {chunk.spans[0].version: chunk for chunk in chunks}
    assert of_each.keys() == {"a", "b"}
    await engine.load(folders[1], "s@1")
    assert [await server.version() for server in (*fleet.theirs, engine)] == ["s@1"] * 3
    after = await final(engine, ask(PROMPT, max_new_tokens=40))
    assert after.spans == (Span(version="s@1", start=0, end=40),)
    assert max(gap(folders[0], chunk, chunk.spans[0]) for chunk in of_each.values()) < 1e-5
    assert gap(folders[1], after, after.spans[0]) < 1e-5


@shared
async def test_a_generation_that_runs_while_weights_change_says_which_sampled_what(
    fleet: Fleet, folders: list[Path]
) -> None:
    engine = fleet.engines.engine
    await engine.load(folders[1], "s@1")
    latest: dict[int, GenerateChunk] = {}

    async def follow(index: int) -> None:
        async for chunk in engine.generate(ask(PROMPT, max_new_tokens=1000, stream=True)):
            latest[index] = chunk

    readers = [asyncio.create_task(follow(index)) for index in range(SLOTS)]
    async with asyncio.timeout(60):
        while len(latest) < SLOTS or min(len(chunk.output_ids) for chunk in latest.values()) < 20:
            await asyncio.sleep(0.005)
    await engine.load(folders[2], "s@2")
    await asyncio.gather(*readers)
    for chunk in latest.values():
        assert [span.version for span in chunk.spans] == ["s@1", "s@2"]
        assert chunk.spans[-1].end == 1000
        assert max(gap(folder, chunk, span) for folder, span in zip(folders[1:], chunk.spans, strict=True)) < 1e-5


@shared
async def test_the_calls_of_a_session_stay_with_one_server(fleet: Fleet, folders: list[Path]) -> None:
    await fleet.name(folders[0])

    async def answered_by(session: str) -> set[str]:
        calls = [replace(ask((n, *PROMPT), max_new_tokens=2), session=session) for n in range(6)]
        return {(await final(fleet.engines.engine, call)).spans[0].version for call in calls}

    assert [len(await answered_by(session)) for session in ("s-1", "s-2", "s-3", "s-4")] == [1] * 4


@shared
@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_goes_away_stops_its_generation(fleet: Fleet, stream: bool) -> None:
    requests = [ask(PROMPT, stream=stream, max_new_tokens=2000) for _ in range(5 * SLOTS)]
    readers = [asyncio.create_task(final(fleet.engines.engine, request)) for request in requests]
    await asyncio.sleep(0.5)
    for reader in readers:
        reader.cancel()
    async with asyncio.timeout(2):  # all slots of both were taken, and others waited
        await asyncio.gather(*(final(server, ask(PROMPT, max_new_tokens=1)) for server in fleet.theirs))


@shared
async def test_requests_that_do_not_fit_do_not_make_the_router_give_a_server_up(fleet: Fleet) -> None:
    for _ in range(24):
        with pytest.raises(ContextLengthExceeded):
            await final(fleet.engines.engine, ask(PROMPT * 147, max_new_tokens=16))
    await final(fleet.engines.engine, ask(PROMPT, seed=-5, max_new_tokens=2))


@shared
async def test_a_router_with_other_servers_is_refused_before_any_gets_weights(fleet: Fleet, tmp_path: Path) -> None:
    one, other = (server.url for server in fleet.theirs)
    versions = [await server.version() for server in fleet.theirs]
    assert fleet.engines.router is not None
    url = fleet.engines.router.url
    local = other.replace("127.0.0.1", "localhost")
    for servers, why in (
        ([one], f"engine.urls lacks {other}"),
        ([one, other, "http://127.0.0.1:1"], "the router lacks http://127.0.0.1:1"),
        ([one, local], f"engine.urls lacks {other}; the router lacks {local}"),
    ):
        with pytest.raises(EngineError) as caught:
            await opened(replace(fleet.engines.config, urls=servers), tmp_path)
        assert caught.value.message == f"the router at {url} has other workers than engine.urls: {why}"
    with pytest.raises(EngineError, match=f"engine.router is {url}, which does not say who its workers are: .*401"):
        await check_workers(url, [one, other], key="guess")
    with pytest.raises(EngineError, match=f"engine.router is {one}, which does not say who its workers are: .*404"):
        await check_workers(one, [one, other], key=KEY)
    assert [await server.version() for server in fleet.theirs] == versions


@NEEDS_ROUTER
async def test_a_server_that_dies_leaves_the_router_there_and_a_dead_router_is_said(
    folders: list[Path], tmp_path: Path
) -> None:
    async with running(folders[0], tmp_path, "round_robin") as fleet:
        engine, engines = fleet.engines.engine, fleet.engines
        streams = [
            cast(AsyncGenerator[GenerateChunk, None], engine.generate(ask(PROMPT, max_new_tokens=800, stream=True)))
            for _ in range(2)
        ]
        async with aclosing(streams[0]), aclosing(streams[1]):
            for stream in streams:
                await anext(stream)
            assert fleet.theirs[0].child is not None
            os.kill(fleet.theirs[0].child.pid, signal.SIGKILL)
            ends = await asyncio.gather(*(_drain(stream) for stream in streams))
        assert len([end for end in ends if end is not None]) == 1
        assert engines.down is None
        for _ in range(4):  # the router asks the other one again
            assert (await final(engine, ask(PROMPT, max_new_tokens=4))).spans[0].version == "s@0"
        os.kill(fleet.router.pid, signal.SIGKILL)
        await fleet.router.wait()
        assert engines.router is not None
        with pytest.raises(EngineError, match=engines.router.url):
            await final(engine, ask(PROMPT, max_new_tokens=4))
        assert isinstance(engine, Routed) and not engine.up
        assert engines.down == f"no answer from {engines.router.url}"
        assert engines.processes()[f"router at {engines.router.url}"]["alive"] is False


async def _drain(stream: AsyncIterator[GenerateChunk]) -> EngineError | None:
    try:
        async for _ in stream:
            pass
    except EngineError as error:
        return error
    return None


async def test_an_abort_goes_to_the_servers_and_of_the_client_the_router_learns_the_session_alone() -> None:
    heads: dict[str, list[tuple[bytes, object]]] = {"router": [], "one": [], "other": []}
    came = asyncio.Semaphore(0)

    @asynccontextmanager
    async def hanging(name: str) -> AsyncIterator[str]:
        """A server that takes requests and never answers."""

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            head = await reader.readuntil(b"\r\n\r\n")
            length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length"))
            heads[name].append((head, json.loads(await reader.readexactly(int(length.split(b":")[1])))))
            came.release()
            await reader.read()
            writer.close()

        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"

    async with hanging("router") as url, hanging("one") as one, hanging("other") as other:
        servers = [HttpEngine(one), HttpEngine(other)]
        engine = HttpEngine(url, key="k", behind=servers)
        request: GenerateRequest = replace(ask(PROMPT, seed=-5), session="mine")
        reader = asyncio.create_task(final(engine, request))
        await came.acquire()
        reader.cancel()
        async with asyncio.timeout(10):
            await came.acquire()
            await came.acquire()
        for each in (engine, *servers):
            await each.close()
    ((head, body),) = heads["router"]
    names = {line.split(b":")[0].lower() for line in head.split(b"\r\n")[1:] if line}
    http = {b"host", b"accept", b"accept-encoding", b"connection", b"user-agent", b"content-length", b"content-type"}
    assert names - http == {b"authorization", b"x-smg-routing-key"}
    assert b"x-smg-routing-key: mine\r\n" in head.lower()
    assert isinstance(body, dict) and body["sampling_params"]["sampling_seed"] == 2**63 - 5
    for name in ("one", "other"):
        ((head, body),) = heads[name]
        assert head.startswith(b"POST /abort_request ") and body == {"rid": request.rid}
