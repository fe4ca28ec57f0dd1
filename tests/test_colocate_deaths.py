"""A colocated engine whose process dies: whenever that is, the trainer never shares the GPU with its successor."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from saocli.colocate import ColocatedEngine, ColocatedTrainer, Turns
from saocli.engine.base import GenerateChunk, GenerateRequest
from saocli.engine.supervised import SupervisedEngine
from saocli.errors import EngineLost
from saocli.process import Child
from saocli.types import Batch, StepOutput


class Gpu:
    """Who holds its memory, and what happened on it."""

    def __init__(self) -> None:
        self.stepping = False
        self.lines: list[str] = []

    def take(self, line: str) -> None:
        assert not self.stepping, f"{line} while the trainer steps"
        self.lines.append(line)


class Server:
    """An engine with a real process."""

    def __init__(self, gpu: Gpu, log: Path, number: int, version: str) -> None:
        self.gpu, self.number, self.serves = gpu, number, version
        argv = [sys.executable, "-c", "input()"]
        self.child: Child | None = Child.start("fake engine", argv, env=os.environ, log=log)
        self.dies_at: str | None = None
        gpu.take(f"start {number} with {version}")

    async def generate(self, request: GenerateRequest) -> AsyncIterator[GenerateChunk]:
        raise NotImplementedError
        yield

    async def die(self) -> None:
        assert self.child is not None
        await self.child.stop()

    async def _do(self, what: str) -> None:
        assert self.child is not None
        if self.dies_at == what:
            await self.die()
        if self.child.returncode is not None:
            raise self.child.died(what)

    async def sleep(self) -> None:
        if self.dies_at == "lost":
            raise EngineLost("it said nothing")
        await self._do("sleep")
        self.gpu.lines.append(f"sleep {self.number}")

    async def load(self, folder: Path, version: str) -> None:
        await self._do("load")
        self.gpu.take(f"{self.number} loads {version}")
        self.serves = version

    async def version(self) -> str:
        return self.serves

    async def command(self, path: str, body: Mapping[str, Any], *, doing: str) -> dict[str, Any]:
        return {}

    async def disconnect(self) -> None:
        pass

    async def close(self) -> None:
        await self.die()


class Trainer:
    def __init__(self, gpu: Gpu, *, dies: Server | None) -> None:
        """`dies`: while it steps."""
        self.gpu = gpu
        self.dies = dies

    async def step(self, batch: Batch) -> StepOutput:
        self.gpu.stepping = True
        if self.dies is not None:
            await self.dies.die()
        await asyncio.sleep(0.3)
        self.gpu.stepping = False
        self.gpu.lines.append("step")
        return StepOutput(step=batch.step, metrics={}, actor_trained=True)

    async def export(self, folder: Path) -> str:
        return "digest"

    async def digest(self) -> str:
        return "digest"

    async def save(self, folder: Path) -> None:
        raise NotImplementedError

    async def load(self, folder: Path) -> None:
        raise NotImplementedError

    async def close(self) -> None:
        pass


@pytest.mark.parametrize("dies_at", ["sleep", "lost", "step", "load"])
async def test_its_successor_starts_between_two_steps_and_serves_the_new_weights(dies_at: str, tmp_path: Path) -> None:
    gpu, turns, servers = Gpu(), Turns(), list[Server]()

    async def start(folder: Path, version: str) -> Server:
        async with turns.starting():
            servers.append(Server(gpu, tmp_path / "engine.log", len(servers), version))
            return servers[-1]

    raw = await SupervisedEngine.begin(start, folder=Path("/base"), version="v0", restarts=3, tell=lambda line: None)
    engine = ColocatedEngine(raw, turns, folder=Path("/base"), version="v0")
    servers[0].dies_at = dies_at
    trainer = ColocatedTrainer(Trainer(gpu, dies=servers[0] if dies_at == "step" else None), engine)
    try:
        await asyncio.wait_for(trainer.step(Batch(step=1, samples=())), 20)
        await asyncio.wait_for(engine.load(Path("/new"), "v1"), 20)
        assert await engine.version() == "v1"
        assert gpu.lines.count("step") == 1
        assert gpu.lines[-1] == "1 loads v1"
        asleep = [] if dies_at in ("sleep", "lost") else ["sleep 0"]
        after_sleep = [line for line in gpu.lines if line not in ("start 0 with v0", *asleep)]
        # Whoever starts before the step is put to sleep for it.
        woken = ["start 1 with v0", "sleep 1", "step", "1 loads v1"]
        assert after_sleep in (["step", "start 1 with v0", "1 loads v1"], woken)
    finally:
        await engine.close()
