"""Several engines as one: who is asked, and weights that reach all of them or none; then with two real ones."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from enginefakes import Script, ScriptedEngine
from enginekit import ask, final, llama, plain_logprobs, save

from saocli.config.engine import EngineConfig
from saocli.engine import replicas
from saocli.engine.base import GenerateChunk, GenerateRequest
from saocli.engine.client import HttpEngine
from saocli.engine.embedded.launch import start_embedded
from saocli.engine.replicas import Replicas
from saocli.errors import EngineError, EngineRestarting, ProcessDied, RunError
from saocli.types import Span

PROMPT = tuple(b"What is 2 + 2?")


@dataclass
class Fake(ScriptedEngine):
    """A scripted engine that can be away, and refuse weights."""

    up: bool = True
    fails: dict[str, RunError] = field(default_factory=dict)  # by the version that is loaded
    folders: list[str] = field(default_factory=list)
    load_s: float = 0.0
    closed: bool = False

    async def load(self, folder: Path, version: str) -> None:
        await asyncio.sleep(self.load_s)
        if version in self.fails:
            raise self.fails[version]
        self.folders.append(folder.name)
        await super().load(folder, version)

    async def close(self) -> None:
        self.closed = True


def fakes(count: int) -> list[Fake]:
    return [Fake(lambda request: Script(ids=(1, 2, 3), delay_s=0.02), "v0") for _ in range(count)]


def over(engines: list[Fake]) -> Replicas:
    return Replicas(engines, folder=Path("base"), version="v0")


def asked(engines: list[Fake]) -> list[int]:
    return [len(engine.requests) for engine in engines]


def of_session(name: str) -> GenerateRequest:
    return replace(ask((1,)), session=name)


async def test_requests_at_once_are_shared_out_evenly() -> None:
    engines = fakes(3)
    fleet = over(engines)
    await asyncio.gather(*(final(fleet, ask((1,))) for _ in range(12)))
    assert asked(engines) == [4, 4, 4]


async def test_requests_one_after_another_are_too() -> None:
    engines = fakes(3)
    fleet = over(engines)
    for _ in range(6):
        await final(fleet, ask((1,)))
    assert asked(engines) == [2, 2, 2]


async def test_the_one_that_runs_the_fewest_is_asked() -> None:
    engines = fakes(2)
    fleet = over(engines)
    streams = [fleet.generate(ask((1,), stream=True)) for _ in range(4)]
    for stream in streams:
        await anext(stream)
    for stream in (streams[0], streams[2]):  # both of the first engine
        await stream.aclose()  # type: ignore[attr-defined]
    await asyncio.gather(*(final(fleet, ask((1,))) for _ in range(2)))
    assert asked(engines) == [4, 2]
    for stream in (streams[1], streams[3]):
        await stream.aclose()  # type: ignore[attr-defined]


async def test_the_calls_of_a_session_stay_together_while_their_engine_is_up() -> None:
    engines = fakes(3)
    fleet = over(engines)
    await final(fleet, of_session("a"))
    for _ in range(4):
        await asyncio.gather(final(fleet, of_session("a")), final(fleet, of_session("b")), final(fleet, ask((1,))))
    at_home = [[r.session for r in engine.requests].count("a") for engine in engines]
    assert at_home == [5, 0, 0]
    engines[0].up = False
    await final(fleet, of_session("a"))
    engines[0].up = True
    await final(fleet, of_session("a"))
    moved = [[r.session for r in engine.requests].count("a") for engine in engines]
    assert sorted(moved) == [0, 2, 5]


async def test_no_more_sessions_are_remembered_than_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicas, "SESSIONS", 2)
    engines = fakes(2)
    fleet = over(engines)
    for name in ("a", "b", "a", "c", "b"):  # c puts b out, which was quiet for longer than a
        await final(fleet, of_session(name))
    assert list(fleet._homes) == ["c", "b"]


async def test_who_is_away_is_not_asked_and_with_nobody_there_it_says_so() -> None:
    engines = fakes(2)
    fleet = over(engines)
    engines[0].up = False
    await asyncio.gather(*(final(fleet, ask((1,))) for _ in range(4)))
    assert asked(engines) == [0, 4]
    assert fleet.up
    engines[1].up = False
    assert not fleet.up
    with pytest.raises(EngineRestarting, match="none of the 2 engines"):
        await final(fleet, ask((1,)))


async def test_weights_are_loaded_on_all_at_the_same_time() -> None:
    engines = fakes(3)
    for engine in engines:
        engine.load_s = 0.2
    fleet = over(engines)
    async with asyncio.timeout(0.5):
        await fleet.load(Path("first"), "v1")
    assert await fleet.version() == "v1"


@pytest.mark.parametrize("error", [EngineError("no room"), ProcessDied("no room")])
async def test_when_one_fails_all_serve_what_they_served(error: RunError) -> None:
    engines = fakes(3)
    fleet = over(engines)
    await fleet.load(Path("first"), "v1")
    engines[1].fails["v2"] = error
    with pytest.raises(EngineError, match="v2 was not published: engine 2 of 3: no room"):
        await fleet.load(Path("second"), "v2")
    assert await fleet.version() == "v1"
    assert [engine.folders for engine in engines] == [
        ["first", "second", "first"],
        ["first"],
        ["first", "second", "first"],
    ]
    await fleet.load(Path("third"), "v3")
    assert await fleet.version() == "v3"


async def test_one_that_cannot_go_back_is_named_and_found_out() -> None:
    engines = fakes(2)
    fleet = over(engines)
    engines[0].fails["v0"] = EngineError("lost")
    engines[1].fails["v1"] = EngineError("no room")
    with pytest.raises(
        EngineError, match="engine 2 of 2: no room; and v0 could not be loaded again: engine 1 of 2: lost"
    ):
        await fleet.load(Path("first"), "v1")
    with pytest.raises(EngineError, match="engine 1: v1, engine 2: v0"):
        await fleet.version()


async def test_all_are_closed() -> None:
    engines = fakes(3)
    await over(engines).close()
    assert all(engine.closed for engine in engines)


class Elsewhere:
    """An engine whose release folders are broken where it reads them."""

    def __init__(self, engine: HttpEngine, broken: Path) -> None:
        self._engine = engine
        self._broken = broken

    @property
    def up(self) -> bool:
        return self._engine.up

    def generate(self, request: GenerateRequest) -> AsyncIterator[GenerateChunk]:
        return self._engine.generate(request)

    async def load(self, folder: Path, version: str) -> None:
        await self._engine.load(self._broken if version == "v1" else folder, version)

    async def version(self) -> str:
        return await self._engine.version()

    async def close(self) -> None:
        await self._engine.close()


async def test_two_real_engines_take_all_or_nothing(tmp_path: Path) -> None:
    folders = [save(llama(seed, eos_token_id=None), tmp_path / f"v{seed}") for seed in range(3)]
    broken = tmp_path / "broken"
    shutil.copytree(folders[1], broken)
    os.truncate(broken / "model.safetensors", (broken / "model.safetensors").stat().st_size - 100)
    config = EngineConfig(threads=1, slots=4)
    async with AsyncExitStack() as started:

        async def start(seed: int) -> HttpEngine:
            engine = await start_embedded(
                config,
                model_folder=folders[0],
                version="v0",
                context_length=2048,
                seed=seed,
                log=tmp_path / f"{seed}.log",
            )
            started.push_async_callback(engine.close)
            return engine

        one, other = await asyncio.gather(start(0), start(1))
        fleet = Replicas([one, Elsewhere(other, broken)], folder=folders[0], version="v0")

        async def greedy() -> list[GenerateChunk]:
            """Of each engine."""
            return await asyncio.gather(*(final(fleet, ask(PROMPT, temperature=0.0, max_new_tokens=40)) for _ in "12"))

        before = await greedy()
        assert before[0] == before[1]
        with pytest.raises(EngineError, match=r"engine 2 of 2: .*not a complete safetensors file"):
            await fleet.load(folders[1], "v1")
        assert await fleet.version() == "v0"
        assert await greedy() == before
        await fleet.load(folders[2], "v2")
        after = await greedy()
        assert after[0] == after[1]
        assert after[0].spans == (Span(version="v2", start=0, end=40),)
        expected = plain_logprobs(folders[2], PROMPT, after[0].output_ids, 1.0)
        assert max(abs(a - b) for a, b in zip(after[0].logprobs, expected, strict=True) if a is not None) < 1e-5
