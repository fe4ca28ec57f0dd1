"""Held-out evaluation through the same gateway."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from saocli.client import Client
from saocli.config.tasks import TasksConfig
from saocli.driver.attempt import Grader, attempt_seed
from saocli.driver.together import together
from saocli.errors import RunError
from saocli.types import Problem


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluation:
    """Held-out pass rate at one step of the chain."""

    step: int
    temperature: float
    samples: int
    passed: float  # sum of scores
    truncated: int
    errors: int
    seconds: float


async def evaluate(
    client: Client,
    grader: Grader,
    config: TasksConfig,
    problems: Sequence[Problem],
    *,
    step: int,
    temperature: float,
    seed: int,
    draw: str,
) -> Evaluation:
    """Pass rate on fresh problems; answers go to another scenario, unreported.

    `draw` names the evaluation in its sampling seeds: equal names draw equally, whichever arm trained and how long.
    """
    slots = asyncio.Semaphore(config.eval.concurrency)
    loop = asyncio.get_running_loop()
    started = loop.time()

    async def one(problem: Problem) -> tuple[Any, str]:
        async with slots:
            _, completion = await client.answer(
                problem,
                config=config,
                seed=attempt_seed(seed, f"eval/{draw}/{problem.id}", 1),
                temperature=temperature,
                scenario=f"{client.scenario}-eval",
                tag=problem.id,
            )
            choice = completion["choices"][0]
            return await grader.grade(problem, choice["message"]["content"] or ""), choice["finish_reason"]

    grades = await together([one(problem) for problem in problems])
    if not grades:
        raise RunError("evaluation has no problems", fix="set tasks.eval.samples to at least 1")
    return Evaluation(
        step=step,
        temperature=temperature,
        samples=len(grades),
        passed=sum(grade.score or 0.0 for grade, _ in grades),
        truncated=sum(reason == "length" for _, reason in grades),
        errors=sum(grade.error is not None for grade, _ in grades),
        seconds=loop.time() - started,
    )
