"""Plays tasks through the gateway over HTTP as any outside client would: attempt, grade, report, wait until trained."""

from __future__ import annotations

import asyncio
import hashlib
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

from saocli.client import Client
from saocli.config.tasks import EvalConfig, TasksConfig
from saocli.errors import RunError, SaoError
from saocli.types import Problem

T = TypeVar("T")


class Grader(Protocol):
    """Scores one answer; a grader that fails says so instead of scoring 0."""

    async def grade(self, problem: Problem, text: str) -> Any: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Attempt:
    """One attempt at a problem, as the client saw it."""

    problem: str
    number: int  # 1-based, of this problem
    of: int
    receipt: str
    text: str
    completion_tokens: int
    finish_reason: str
    score: float | None = None  # None: not graded, or grading failed
    error: str | None = None  # the grader's error
    state: str | None = None  # queued, recorded; after waiting: trained, dropped
    reason: str | None = None
    release_id: str | None = None
    step: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluation:
    """Held-out pass rate at one step of the chain."""

    step: int
    samples: int
    passed: float  # sum of scores
    truncated: int
    errors: int
    seconds: float


def attempt_seed(seed: int, problem: str, number: int) -> int:
    """A sampling seed that depends on the run's seed and the attempt alone, so that a run can be repeated."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{problem}/{number}".encode()).digest()[:4], "big") >> 1


async def _nothing(_: int) -> None:
    """The default of Driver.play's `on_step`."""


class Driver:
    """Plays a task set in order: waves of as many attempts as make one optimizer step, each waiting until trained."""

    def __init__(
        self,
        client: Client,
        grader: Grader,
        config: TasksConfig,
        *,
        seed: int,
        report: bool = True,
        on_attempt: Callable[[Attempt], None] = lambda _: None,
        on_start: Callable[[str, int, int], None] = lambda *_: None,
    ) -> None:
        self._client = client
        self._grader = grader
        self._config = config
        self._seed = seed
        self._report = report
        self._on_attempt = on_attempt
        self._on_start = on_start

    async def play(
        self, problems: Sequence[Problem], *, on_step: Callable[[int], Awaitable[None]] = _nothing
    ) -> list[Attempt]:
        """Every problem `attempts` times, in order; a full batch of accepted reports is waited for before the next try.

        `on_step(step)` is awaited once for each step that these attempts trained.
        """
        plan = deque((problem, n) for problem in problems for n in range(1, self._config.attempts + 1))
        waits = self._report and self._config.wait_trained
        batch = (await self._client.contract())["batch_size"] if waits else max(1, len(plan))
        waiting: dict[asyncio.Task[dict[str, Any]], Attempt] = {}
        done: list[Attempt] = []
        last = 0
        try:
            while plan or len(waiting) >= batch:
                wave = [plan.popleft() for _ in range(min(len(plan), batch - len(waiting)))]
                for attempt in await self._wave(wave):
                    if waits and attempt.state == "queued":
                        waiting[asyncio.create_task(self._client.settled(attempt.receipt))] = attempt
                    else:
                        done.append(attempt)
                        self._on_attempt(attempt)
                # A short wave (an attempt that cannot train, a report dropped as stale) is filled up before waiting.
                if len(waiting) >= batch:
                    finished, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                    settled = [_settled(waiting.pop(task), task.result()) for task in finished]
                    for attempt in settled:
                        done.append(attempt)
                        self._on_attempt(attempt)
                    for step in sorted({a.step for a in settled if a.step is not None and a.step > last}):
                        last = step
                        await on_step(step)
        finally:
            for task in waiting:
                task.cancel()
        return [*done, *waiting.values()]

    async def _wave(self, wave: Sequence[tuple[Problem, int]]) -> list[Attempt]:
        slots = asyncio.Semaphore(self._config.concurrency)

        async def one(problem: Problem, number: int) -> Attempt:
            async with slots:
                self._on_start(problem.id, number, self._config.attempts)
                return await self._attempt(problem, number)

        return await _together([one(problem, number) for problem, number in wave])

    async def _attempt(self, problem: Problem, number: int) -> Attempt:
        receipt, completion = await self._client.answer(
            problem,
            config=self._config,
            seed=attempt_seed(self._seed, problem.id, number),
            temperature=self._config.temperature,
            scenario=self._client.scenario,
            tag=problem.id,
        )
        choice = completion["choices"][0]
        text = choice["message"]["content"] or ""
        score = error = state = reason = None
        if self._report:
            grade = await self._grader.grade(problem, text)
            score, error = grade.score, grade.error
            if score is not None:
                accepted = await self._client.report([receipt], score, metadata={"task": problem.id})
                state, reason = ("queued" if accepted["trains"] else "recorded"), accepted["reason"]
        return Attempt(
            problem=problem.id,
            number=number,
            of=self._config.attempts,
            receipt=receipt,
            text=text,
            completion_tokens=completion["usage"]["completion_tokens"],
            finish_reason=choice["finish_reason"],
            score=score,
            error=error,
            state=state,
            reason=reason,
        )


async def _together(work: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """All results in order; the first failure ends the rest and is raised as itself."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one) for one in work]
    except* SaoError as failures:
        raise failures.exceptions[0] from None
    return [task.result() for task in tasks]


def _settled(attempt: Attempt, record: dict[str, Any]) -> Attempt:
    return replace(
        attempt, state=record["state"], reason=record["reason"], release_id=record["release_id"], step=record["step"]
    )


async def evaluate(
    client: Client, grader: Grader, config: TasksConfig, problems: Sequence[Problem], *, step: int, seed: int
) -> Evaluation:
    """Pass rate on fresh problems through the same gateway; answers go to another scenario, unreported."""
    options: EvalConfig = config.eval
    slots = asyncio.Semaphore(options.concurrency)
    loop = asyncio.get_running_loop()
    started = loop.time()

    async def one(problem: Problem) -> tuple[Any, str]:
        async with slots:
            _, completion = await client.answer(
                problem,
                config=config,
                seed=attempt_seed(seed, f"eval/{step}/{problem.id}", 1),
                temperature=options.temperature,
                scenario=f"{client.scenario}-eval",
                tag=problem.id,
            )
            choice = completion["choices"][0]
            return await grader.grade(problem, choice["message"]["content"] or ""), choice["finish_reason"]

    grades = await _together([one(problem) for problem in problems])
    if not grades:
        raise RunError("evaluation has no problems", fix="set tasks.eval.samples to at least 1")
    return Evaluation(
        step=step,
        samples=len(grades),
        passed=sum(grade.score or 0.0 for grade, _ in grades),
        truncated=sum(reason == "length" for _, reason in grades),
        errors=sum(grade.error is not None for grade, _ in grades),
        seconds=loop.time() - started,
    )
