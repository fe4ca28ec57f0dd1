"""An engine whose process dies: what its callers are told, what is started in its place, and when that ends."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from enginefakes import Script, ScriptedEngine
from enginekit import ask, final

from saocli.engine import supervised
from saocli.engine.base import GenerateChunk, GenerateRequest
from saocli.engine.supervised import SupervisedEngine
from saocli.errors import EngineError, EngineLost, EngineRestarting, ProcessDied, RunError
from saocli.process import Child

Loads = Callable[["Fake", Path, str], None]


class Fake(ScriptedEngine):
    """A scripted engine with a real process, of which it says that it died as soon as it has."""

    def __init__(self, child: Child, version: str, on_load: Loads) -> None:
        super().__init__(lambda request: Script(ids=(1,) * request.sampling.max_new_tokens, delay_s=0.01), version)
        self.child: Child | None = child
        self.loaded: list[str] = []
        self.disconnected = False
        self._on_load = on_load

    async def generate(self, request: GenerateRequest) -> AsyncIterator[GenerateChunk]:
        async for chunk in super().generate(request):
            await self._alive()
            yield chunk

    async def load(self, folder: Path, version: str) -> None:
        self._on_load(self, folder, version)
        await self._alive()
        self.loaded.append(version)
        await super().load(folder, version)

    async def sleep(self) -> None:
        self._on_load(self, Path("asleep"), "asleep")
        await self._alive()

    async def disconnect(self) -> None:
        self.disconnected = True

    async def close(self) -> None:
        assert self.child is not None
        await self.child.stop()

    def kill(self) -> None:
        assert self.child is not None
        os.kill(self.child.pid, signal.SIGKILL)

    async def _alive(self) -> None:
        assert self.child is not None
        await asyncio.sleep(0.02)  # a process is not gone at the moment of its kill
        if self.child.returncode is not None:
            raise self.child.died("answering")


@dataclass
class Place:
    """Starts fakes, and remembers them."""

    log: Path
    on_load: Loads = lambda fake, folder, version: None
    starts: list[tuple[str, str]] = field(default_factory=list)
    fakes: list[Fake] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    room: asyncio.Event = field(default_factory=asyncio.Event)  # until then nothing starts
    failures: list[RunError] = field(default_factory=list)  # what the next starts end with
    serves: str | None = None  # instead of what was asked for

    async def start(self, folder: Path, version: str) -> Fake:
        self.starts.append((folder.name, version))
        await self.room.wait()
        if self.failures:
            raise self.failures.pop(0)
        argv = [sys.executable, "-c", "print('lived', flush=True); input()"]
        child = Child.start("fake engine", argv, env=os.environ, log=self.log)
        self.fakes.append(Fake(child, self.serves or version, self.on_load))
        return self.fakes[-1]

    async def engine(self, restarts: int = 3) -> SupervisedEngine:
        self.room.set()
        return await SupervisedEngine.begin(
            self.start, folder=Path("base"), version="v0", restarts=restarts, tell=self.said.append
        )


@pytest.fixture
async def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Place]:
    monkeypatch.setattr(supervised, "_PAUSE_S", 0.01)
    monkeypatch.setattr(supervised, "_EXIT_GRACE_S", 0.2)
    place = Place(tmp_path / "engine.log")
    yield place
    for fake in place.fakes:
        await fake.close()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.01)


async def back(engine: SupervisedEngine, restarts: int = 1) -> None:
    await until(lambda: engine.restarts == restarts and engine.up)


async def test_it_is_started_again_with_the_weights_that_served_last(place: Place) -> None:
    engine = await place.engine()
    await engine.load(Path("first"), "v1")
    first = engine.pid
    place.fakes[0].kill()
    await back(engine)
    assert place.starts == [("base", "v0"), ("first", "v1")]
    assert await engine.version() == "v1"
    assert engine.pid not in (first, None)
    assert place.said == [
        "the fake engine was killed by SIGKILL while serving: starting it again with v1 (1 of 3 in a row)"
    ]
    assert place.fakes[0].disconnected
    await engine.close()


async def test_what_was_running_and_what_is_asked_for_meanwhile_is_told_so(place: Place) -> None:
    engine = await place.engine()
    running = [asyncio.create_task(final(engine, ask((1,), stream=True, max_new_tokens=500))) for _ in range(8)]
    await asyncio.sleep(0.1)
    place.room.clear()
    place.fakes[0].kill()
    async with asyncio.timeout(2):
        ended = await asyncio.gather(*running, return_exceptions=True)
    assert {type(error) for error in ended} == {EngineRestarting}
    await until(lambda: len(place.starts) == 2)
    assert (engine.up, engine.pid) == (False, None)
    for asked in (final(engine, ask((1,))), engine.version()):
        with pytest.raises(EngineRestarting, match="fake engine is being started again"):
            await asked
    place.room.set()
    await back(engine)
    assert len((await final(engine, ask((1,), max_new_tokens=3))).output_ids) == 3
    await engine.close()


async def test_a_publication_meanwhile_waits_for_it(place: Place) -> None:
    engine = await place.engine()
    place.room.clear()
    place.fakes[0].kill()
    await until(lambda: len(place.starts) == 2)
    loading = asyncio.create_task(engine.load(Path("first"), "v1"))
    await asyncio.sleep(0.1)
    assert not loading.done()
    place.room.set()
    await loading
    assert place.starts[1] == ("base", "v0")
    assert place.fakes[1].loaded == ["v1"]
    assert await engine.version() == "v1"
    await engine.close()


async def test_a_publication_that_it_dies_of_is_made_on_the_next_one(place: Place) -> None:
    place.on_load = lambda fake, folder, version: fake.kill() if fake is place.fakes[0] else None
    engine = await place.engine()
    await engine.load(Path("first"), "v1")
    assert place.starts == [("base", "v0"), ("base", "v0")]
    assert [fake.loaded for fake in place.fakes] == [[], ["v1"]]
    place.fakes[1].kill()
    await back(engine, 2)
    assert place.starts[-1] == ("first", "v1")
    await engine.close()


async def test_a_publication_that_it_always_dies_of_gives_it_up(place: Place) -> None:
    place.on_load = lambda fake, folder, version: fake.kill()
    engine = await place.engine(restarts=2)
    with pytest.raises(ProcessDied, match="SIGKILL"):
        await engine.load(Path("first"), "v1")
    assert len(place.starts) == 3
    await engine.close()


async def test_a_publication_that_it_refuses_changes_nothing(place: Place) -> None:
    def refuse(fake: Fake, folder: Path, version: str) -> None:
        raise EngineError("lacks a tensor")

    place.on_load = refuse
    engine = await place.engine()
    with pytest.raises(EngineError, match="lacks a tensor"):
        await engine.load(Path("first"), "v1")
    assert (engine.up, engine.restarts) == (True, 0)
    place.fakes[0].kill()
    await back(engine)
    assert place.starts[1] == ("base", "v0")
    await engine.close()


async def test_one_that_holds_nobody_knows_what_is_ended_and_started_again(place: Place) -> None:
    def lose(fake: Fake, folder: Path, version: str) -> None:
        if fake is place.fakes[0]:
            raise EngineLost("publishing v1 took longer than 1 s")

    place.on_load = lose
    engine = await place.engine()
    await engine.load(Path("first"), "v1")
    assert place.starts == [("base", "v0"), ("base", "v0")]
    assert await engine.version() == "v1"
    assert place.said[0] == "publishing v1 took longer than 1 s: ending the fake engine"
    await engine.close()


@pytest.mark.parametrize("dies", [True, False])
async def test_one_that_does_not_give_its_memory_back_has_none_once_it_is_ended(place: Place, dies: bool) -> None:
    def refuse(fake: Fake, folder: Path, version: str) -> None:
        if dies:
            fake.kill()
        else:
            raise EngineLost("no answer")

    place.on_load = refuse
    engine = await place.engine()
    await engine.sleep()
    await back(engine)
    assert place.starts == [("base", "v0"), ("base", "v0")]
    await engine.close()


async def test_it_is_given_up_with_the_end_of_its_log(place: Place) -> None:
    engine = await place.engine(restarts=2)
    for restart in (1, 2):
        await until(lambda: place.log.read_text().count("lived") == len(place.fakes))
        place.fakes[-1].kill()
        await back(engine, restart)
    place.fakes[-1].kill()
    with pytest.raises(ProcessDied, match=r"killed by SIGKILL while serving\n.*│ lived") as given_up:
        await engine.given_up()
    assert "restarts in a row: 2, all that engine.restarts allows" in str(given_up.value.fix)
    assert str(place.log) in str(given_up.value.fix)
    for asked in (final(engine, ask((1,))), engine.load(Path("first"), "v1"), engine.version()):
        with pytest.raises(RunError):
            await asked
    assert not engine.up
    await engine.close()


async def test_a_publication_starts_the_count_over(place: Place) -> None:
    engine = await place.engine(restarts=1)
    for number in (1, 2, 3):
        place.fakes[-1].kill()
        await back(engine, number)
        await engine.load(Path("first"), f"v{number}")
    await engine.close()


async def test_and_so_do_many_generations(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervised, "GOOD", 5)
    engine = await place.engine(restarts=1)
    for number, generations in ((1, 5), (2, 5), (3, 4)):
        place.fakes[-1].kill()
        await back(engine, number)
        for _ in range(generations):
            await final(engine, ask((1,), max_new_tokens=1))
    place.fakes[-1].kill()
    with pytest.raises(ProcessDied):
        await asyncio.wait_for(engine.given_up(), 5)
    await engine.close()


async def test_a_start_that_fails_counts_and_its_reason_is_what_is_told(place: Place) -> None:
    engine = await place.engine(restarts=2)
    place.failures = [ProcessDied("no memory", fix="wait"), ProcessDied("no memory yet", fix="wait")]
    place.fakes[0].kill()
    with pytest.raises(ProcessDied, match="no memory yet"):
        await engine.given_up()
    assert [line.split(":")[0] for line in place.said] == [
        "the fake engine was killed by SIGKILL while serving",
        "no memory",
    ]
    await engine.close()


async def test_one_that_serves_something_else_is_not_used(place: Place) -> None:
    engine = await place.engine()
    place.serves = "v7"
    place.fakes[0].kill()
    with pytest.raises(EngineError, match="was started with v0 and serves v7"):
        await engine.given_up()
    assert place.fakes[1].child is not None and place.fakes[1].child.returncode is not None
    await engine.close()


async def test_closing_while_it_is_down_ends_the_start(place: Place) -> None:
    engine = await place.engine()
    place.room.clear()
    place.fakes[0].kill()
    await until(lambda: len(place.starts) == 2)
    await engine.close()
    place.room.set()
    await asyncio.sleep(0.05)
    assert len(place.fakes) == 1
