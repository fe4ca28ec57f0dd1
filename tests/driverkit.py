"""A driver against a real gateway, store and queue; what is scripted is the engine, the grader and the training."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from enginefakes import Script, ScriptedEngine, say
from gatewaykit import SCENARIO, TOKEN, Gateway, release, serving

from saocli.client import Client
from saocli.config.tasks import TasksConfig, TaskSource
from saocli.driver import Attempt, Driver
from saocli.engine.base import GenerateRequest
from saocli.queue import SampleQueue
from saocli.tasks.graders.grade import Grade
from saocli.types import Problem, Taken


def problem(name: str) -> Problem:
    """A problem whose prompt is its name."""
    return Problem(
        id=name, messages=({"role": "user", "content": name},), answer="", grader="none", source={"family": name[0]}
    )


def tasks(**options: Any) -> TasksConfig:
    return TasksConfig(**{"source": TaskSource.INLINE, "max_tokens": 16} | options)  # type: ignore[arg-type]


@dataclass
class Scores:
    """A grader that scores 1, or what `grade` says."""

    grade_of: Callable[[Problem, int], Grade] = lambda *_: Grade(score=1.0)
    graded: list[str] = field(default_factory=list)  # problems, in order

    async def grade(self, problem: Problem, text: str) -> Grade:
        self.graded.append(problem.id)
        return self.grade_of(problem, self.graded.count(problem.id))


@dataclass
class Bench:
    """A service that trains: each step takes its batch, serves new weights and commits."""

    gateway: Gateway
    engine: ScriptedEngine
    client: Client
    queue: SampleQueue
    grader: Scores
    batches: list[Taken] = field(default_factory=list)
    attempts: list[Attempt] = field(default_factory=list)  # as they ended
    started: list[tuple[str, int]] = field(default_factory=list)
    step_s: float = 0.0

    def driver(self, config: TasksConfig, **options: Any) -> Driver:
        return Driver(
            self.client,
            self.grader,
            config,
            seed=0,
            on_attempt=self.attempts.append,
            on_start=lambda problem, number, of: self.started.append((problem, number)),
            **options,
        )

    async def play(self, problems: list[Problem], config: TasksConfig, **options: Any) -> list[Attempt]:
        return await asyncio.wait_for(self.driver(config).play(problems, **options), 30)

    async def train(self) -> None:
        step = 1
        while (taken := await self.queue.take(step)) is not None:
            await asyncio.sleep(self.step_s)
            self.engine.weights = f"{SCENARIO}@{step}"
            made = release(step, parent=f"{SCENARIO}@{step - 1}")
            self.gateway.deps.releases.commit(made, report_ids=taken.report_ids)
            self.batches.append(taken)
            self.gateway.deps.changes.notify()
            step += 1


@asynccontextmanager
async def bench(
    folder: Path,
    *,
    batch_size: int = 1,
    group_size: int = 1,
    max_staleness: int = 0,
    trains: bool = True,
    script: Callable[[GenerateRequest], Script] = lambda _: say("A"),
) -> AsyncIterator[Bench]:
    folder.mkdir(exist_ok=True)
    engine = ScriptedEngine(script)
    options = {"batch_size": batch_size, "group_size": group_size, "max_staleness": max_staleness, "trains": trains}
    async with serving(folder, engine, **options) as gateway:
        queue = SampleQueue(
            gateway.deps.records,
            gateway.deps.releases,
            scenario=SCENARIO,
            batch_size=batch_size,
            group_size=group_size,
            max_staleness=max_staleness,
            on_drop=gateway.deps.changes.notify,
        )
        gateway.deps.on_report_accepted = queue.wake
        gateway.deps.records.ensure_scenario(SCENARIO, at=0.0)
        client = Client(gateway.url, TOKEN, scenario=SCENARIO)
        made = Bench(gateway, engine, client, queue, Scores())
        training = asyncio.create_task(made.train())
        try:
            yield made
        finally:
            queue.drain()
            await training
            await client.close()
