"""Trainer and engine in turns: the order of what they are told, whatever fails, and who waits for whom."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from saocli.colocate import ColocatedEngine, ColocatedTrainer, Turns
from saocli.engine.base import GenerateChunk, GenerateRequest
from saocli.errors import EngineError, RunError, TrainerError
from saocli.types import Batch, StepOutput

BASE, NEW, STATE = Path("/base"), Path("/new"), Path("/state")


@dataclass
class Log:
    """What was told to whom, in order; what is in `fails` raises, once."""

    lines: list[str] = field(default_factory=list)
    fails: dict[str, RunError] = field(default_factory=dict)

    def note(self, line: str) -> None:
        self.lines.append(line)
        if error := self.fails.pop(line, None):
            raise error


@dataclass
class FakeEngine:
    log: Log
    serves: str = "v0"
    asleep: bool = False

    async def generate(self, request: GenerateRequest) -> AsyncIterator[GenerateChunk]:
        raise NotImplementedError
        yield

    async def sleep(self) -> None:
        self.log.note("sleep")
        self.asleep = True

    async def load(self, folder: Path, version: str) -> None:
        self.asleep = False  # it wakes, whatever comes of the load
        self.log.note(f"load {folder} {version}")
        self.serves = version

    async def version(self) -> str:
        return self.serves

    async def close(self) -> None:
        self.log.note("close")


@dataclass
class FakeTrainer:
    log: Log
    engine: FakeEngine
    trains: bool = True
    during: Callable[[], object] = lambda: None

    def _alone(self, line: str) -> None:
        assert self.engine.asleep, "the engine's memory is needed for this"
        self.log.note(line)

    async def step(self, batch: Batch) -> StepOutput:
        self._alone("step")
        self.during()
        await asyncio.sleep(0.05)
        self.log.note("stepped")
        return StepOutput(step=batch.step, metrics={}, actor_trained=self.trains)

    async def export(self, folder: Path) -> str:
        self.log.note("export")
        return "digest"

    async def digest(self) -> str:
        return "digest"

    async def save(self, folder: Path) -> None:
        self._alone("save")

    async def load(self, folder: Path) -> None:
        self._alone("restore")

    async def close(self) -> None:
        pass


class Stack:
    def __init__(self, *, trains: bool = True) -> None:
        self.log, self.turns = Log(), Turns()
        self.raw = FakeEngine(self.log)
        self.raw_trainer = FakeTrainer(self.log, self.raw, trains)
        self.engine = ColocatedEngine(self.raw, self.turns, folder=BASE, version="v0")
        self.trainer = ColocatedTrainer(self.raw_trainer, self.engine)

    async def step(self) -> StepOutput:
        return await self.trainer.step(Batch(step=1, samples=()))

    async def commit(self, version: str = "v1") -> None:
        """As `loop.conduct` does it, with a checkpoint due."""
        output = await self.step()
        if output.actor_trained:
            await self.trainer.export(NEW)
        await self.trainer.save(STATE)
        if output.actor_trained:
            await self.engine.load(NEW, version)


STEP = ["sleep", "step", "stepped"]
OLD = "load /base v0"


async def test_a_step_with_new_weights() -> None:
    stack = Stack()
    for version in ("v1", "v2"):
        await stack.commit(version)
        assert stack.log.lines == [*STEP, "export", "save", f"load /new {version}"]
        assert (stack.raw.asleep, await stack.engine.version()) == (False, version)
        stack.log.lines.clear()


async def test_a_step_that_leaves_the_actor_alone_wakes_the_old_weights() -> None:
    stack = Stack(trains=False)
    await stack.step()
    assert stack.log.lines == [*STEP, OLD]
    assert not stack.raw.asleep
    await stack.trainer.save(STATE)
    assert stack.log.lines[4:] == ["sleep", "save", OLD]


async def test_what_was_published_last_is_what_is_woken() -> None:
    stack = Stack()
    await stack.commit("v1")
    stack.raw_trainer.trains = False
    await stack.step()
    assert stack.log.lines[-1] == "load /new v1"
    assert not stack.raw.asleep


@pytest.mark.parametrize(
    ("fails", "lines"),
    [
        ("step", ["sleep", "step", OLD]),
        ("stepped", [*STEP, OLD]),
        ("export", [*STEP, "export", OLD]),
        ("save", [*STEP, "export", "save", OLD]),
        ("load /new v1", [*STEP, "export", "save", "load /new v1"]),  # the engine itself puts back what it had
    ],
)
async def test_whatever_fails_the_engine_is_awake_with_the_old_weights(fails: str, lines: list[str]) -> None:
    stack = Stack()
    stack.log.fails[fails] = TrainerError("no")
    with pytest.raises(TrainerError, match="no"):
        await stack.commit()
    assert stack.log.lines == lines
    assert (stack.raw.asleep, await stack.engine.version()) == (False, "v0")
    stack.log.lines.clear()
    await stack.commit()
    assert stack.log.lines == [*STEP, "export", "save", "load /new v1"]


async def test_without_the_memory_nothing_is_trained() -> None:
    stack = Stack()
    stack.log.fails["sleep"] = EngineError("busy")
    with pytest.raises(EngineError, match="busy"):
        await stack.step()
    assert stack.log.lines == ["sleep"]
    await stack.commit()
    assert stack.log.lines[1:4] == STEP


async def test_a_replay_sleeps_once_and_is_woken_at_its_end() -> None:
    stack = Stack()
    await stack.trainer.load(STATE)
    for _ in range(3):
        await stack.step()
    await stack.trainer.digest()
    assert stack.log.lines == ["sleep", "restore", OLD, *STEP, *STEP[1:], *STEP[1:], OLD]
    assert not stack.raw.asleep


async def test_an_engine_that_died_starts_again_only_after_the_step() -> None:
    stack = Stack()
    starts: list[asyncio.Task[None]] = []

    async def start() -> None:
        async with stack.turns.starting():
            stack.log.note("start")
            stack.raw.asleep = False

    stack.raw_trainer.during = lambda: starts.append(asyncio.create_task(start()))
    await stack.step()
    await asyncio.gather(*starts)
    assert stack.log.lines == [*STEP, "start"]
    # It came back awake: a step asks it for its memory again.
    stack.raw_trainer.during = lambda: None
    stack.log.lines.clear()
    await stack.step()
    assert stack.log.lines == STEP


async def test_an_engine_that_comes_back_just_before_the_step_is_put_to_sleep_again() -> None:
    stack = Stack()
    starting, go = asyncio.Event(), asyncio.Event()

    async def start() -> None:
        async with stack.turns.starting():
            starting.set()
            await go.wait()
            stack.raw.asleep = False
            stack.log.note("start")

    restarted = asyncio.create_task(start())
    await starting.wait()
    step = asyncio.create_task(stack.step())
    await asyncio.sleep(0.05)
    assert stack.log.lines == ["sleep"]
    go.set()
    await asyncio.gather(restarted, step)
    assert stack.log.lines == ["sleep", "start", *STEP]
