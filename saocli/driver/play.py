"""Plays a task set: attempt, grade, report, and at the conf's pace wait until that is trained."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from saocli.client import Client
from saocli.config.tasks import Pacing, TasksConfig
from saocli.driver.attempt import Attempt, Grader, attempt_seed, feedback_delay
from saocli.driver.before import missing
from saocli.driver.clock import PlayClock
from saocli.driver.plan import Plan
from saocli.driver.together import cancelled, together
from saocli.errors import ConfigError
from saocli.types import Problem


@dataclass(frozen=True, kw_only=True, slots=True)
class Pace:
    """What `tasks.pacing` means with this service."""

    waits: bool  # for what it reported to be trained
    grouped: bool  # an attempt that does not train leaves a group incomplete
    batch: int  # reports that make a step
    room: int  # attempts that may be made or waited for at a time


async def _nothing(_: int) -> None:
    """The default of Driver.play's `on_step`."""


class Driver:
    """Plays a task set. `clock` shows the seconds of the play under way, or of the last one."""

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
        report_id: Callable[[str, int], str] | None = None,
    ) -> None:
        """`report_id` names the report of a problem's numbered attempt; None: each report has an id of its own."""
        self.clock = PlayClock()
        self._client = client
        self._grader = grader
        self._config = config
        self._seed = seed
        self._report = report
        self._on_attempt = on_attempt
        self._on_start = on_start
        self._report_id = report_id

    async def play(
        self,
        problems: Sequence[Problem],
        *,
        on_step: Callable[[int], Awaitable[None]] = _nothing,
        before: Sequence[Attempt] = (),
    ) -> list[Attempt]:
        """Every problem `attempts` times, at the pace of `tasks.pacing`; the attempts in the order in which they ended.

        `on_step(step)` is awaited once for each step that trained attempts which are waited for; nothing is begun
        meanwhile. Where the service trains groups, an attempt that does not train is made up for by another one at its
        problem. `on_attempt` is told of each attempt once it has ended; of those that wait for a batch that will not
        become full, at the end.

        `before` are attempts that were made and reported in an earlier session of the run. They are not made again, and
        those that are still queued are waited for like new ones.
        """
        pace = await self._pace()
        numbers = {(attempt.problem, attempt.number) for attempt in before}
        plan = Plan(problems, attempts=self._config.attempts, order=self._config.order, before=numbers)
        making: dict[asyncio.Task[Attempt], Problem] = {}
        waiting: dict[asyncio.Task[dict[str, Any]], tuple[Problem, Attempt]] = {}
        done: list[Attempt] = []
        steps: set[int] = set()

        def ended(problem: Problem, attempt: Attempt) -> None:
            done.append(attempt)
            self._on_attempt(attempt)
            if pace.grouped and attempt.state not in ("trained", "queued"):
                plan.again(problem)

        self.clock.start(max((attempt.at_s for attempt in before), default=0.0))
        by_id = {one.id: one for one in problems}
        for queued in (attempt for attempt in before if attempt.state == "queued"):
            if pace.waits:
                waiting[asyncio.create_task(self._client.settled(queued.receipt))] = by_id[queued.problem], queued
            else:
                ended(by_id[queued.problem], queued)
        for name in missing(before, self._config.attempts) if pace.grouped else ():
            plan.again(by_id[name])
        try:
            while True:
                while plan and len(making) < self._config.concurrency and len(making) + len(waiting) < pace.room:
                    problem, number = plan.next()
                    making[asyncio.create_task(self._attempt(problem, number))] = problem
                if not making and len(waiting) < pace.batch and not await self._moving(a for _, a in waiting.values()):
                    break
                finished, _ = await asyncio.wait({*making, *waiting}, return_when=asyncio.FIRST_COMPLETED)
                first = len(done)
                for settled in [task for task in waiting if task in finished]:
                    problem, attempt = waiting.pop(settled)
                    ended(problem, attempt.settled(settled.result()))
                for made in [task for task in making if task in finished]:
                    problem, attempt = making.pop(made), made.result()
                    if pace.waits and attempt.state == "queued":
                        waiting[asyncio.create_task(self._client.settled(attempt.receipt))] = problem, attempt
                    else:
                        ended(problem, attempt)
                for step in sorted({a.step for a in done[first:] if a.step is not None} - steps):
                    steps.add(step)
                    with self.clock.paused():
                        await on_step(step)
        finally:
            await cancelled([*making, *waiting])
            left = [attempt for _, attempt in waiting.values()]
            for attempt in left:
                self._on_attempt(attempt)
        return [*done, *left]

    async def _pace(self) -> Pace:
        config = self._config
        if not self._report:
            return Pace(waits=False, grouped=False, batch=1, room=config.concurrency)
        contract = await self._client.contract()
        waits = contract["trains"] and config.pacing is not Pacing.NONE
        batch = contract["batch_size"] if waits else 1
        slots = config.pacing is Pacing.SLOTS
        if slots and config.concurrency < batch:
            raise ConfigError(
                f"tasks.concurrency is {config.concurrency} with tasks.pacing=slots, but {batch} rollouts make a step",
                fix=f"give at least {batch} slots, or tasks.pacing=batch",
            )
        return Pace(
            waits=waits,
            grouped=contract["trains"] and contract["group_size"] > 1,
            batch=batch,
            room=batch if waits and not slots else config.concurrency,
        )

    async def _moving(self, waiting: Iterable[Attempt]) -> bool:
        """Whether a step took any of them after all, or dropped it: then what became of it is about to be told."""
        records = await together([self._client.record(attempt.receipt) for attempt in waiting])
        return any(record["state"] != "queued" for record in records)

    async def _attempt(self, problem: Problem, number: int) -> Attempt:
        config = self._config
        self._on_start(problem.id, number, config.attempts)
        receipt, completion = await self._client.answer(
            problem,
            config=config,
            seed=attempt_seed(self._seed, problem.id, number),
            temperature=config.temperature,
            scenario=self._client.scenario,
            tag=problem.id,
        )
        choice = completion["choices"][0]
        text = choice["message"]["content"] or ""
        score = error = state = reason = None
        at_s = self.clock.seconds()
        if self._report:
            await asyncio.sleep(
                feedback_delay(
                    config.feedback_s, config.feedback_sigma, seed=self._seed, problem=problem.id, number=number
                )
            )
            grade = await self._grader.grade(problem, text)
            score, error = grade.score, grade.error
            at_s = self.clock.seconds()
            if score is not None:
                fields: dict[str, Any] = {"metadata": {"task": problem.id, "attempt": number, "at_s": at_s}}
                if self._report_id is not None:
                    fields["agent_record_id"] = self._report_id(problem.id, number)
                accepted = await self._client.report([receipt], score, **fields)
                state, reason = ("queued" if accepted["trains"] else "recorded"), accepted["reason"]
        return Attempt(
            problem=problem.id,
            task=str(problem.source.get("family", problem.id)),
            number=number,
            of=config.attempts,
            receipt=receipt,
            text=text,
            completion_tokens=completion["usage"]["completion_tokens"],
            finish_reason=choice["finish_reason"],
            at_s=at_s,
            score=score,
            error=error,
            state=state,
            reason=reason,
        )
