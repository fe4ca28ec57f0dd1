"""`--drive`: a conf's tasks played to their end, evaluated, and put down in the run directory."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from functools import partial
from typing import Protocol

from saocli.client import Client
from saocli.config.run import RunConfig
from saocli.driver.attempt import Attempt, Grader, report_id
from saocli.driver.before import made_before, only_final
from saocli.driver.evaluation import Evaluation, evaluate
from saocli.driver.play import Driver
from saocli.driver.together import until
from saocli.metrics.sinks import JsonlSink
from saocli.store.records import Records
from saocli.store.run import RunDirectory
from saocli.tasks.graders.pool import GraderPool
from saocli.tasks.sets import eval_problems, load_tasks

LAST = -1  # in tasks.eval.at: after everything is trained


class DriveView(Protocol):
    """Who is told how far it is."""

    def attempt_started(self, problem: str, number: int, of: int) -> None: ...
    def attempt(self, attempt: Attempt) -> None: ...
    def evaluation(self, result: Evaluation) -> None: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Played:
    """How long it took."""

    play_s: float  # from the first attempt until everything was trained, evaluations not counted
    eval_s: float


async def play_to_end(
    config: RunConfig,
    directory: RunDirectory,
    view: DriveView,
    *,
    url: str,
    records: Records,
    head: Callable[[], int],
    drain: Callable[[], None],
    conductor: asyncio.Future[None],
    stop: asyncio.Event,
) -> Played | None:
    """Play the tasks through the gateway as an outside client, let the queue drain, evaluate what came out.

    `head` is the step that serves. The conductor may end before the tasks do, at its last step; then the rest is left
    out. None when `stop` was set before all was done.
    """
    async with AsyncExitStack() as stack:
        client = Client(url, config.gateway.token, scenario=config.scenario)
        stack.push_async_callback(client.close)
        pool = await stack.enter_async_context(GraderPool(workers=2, timeout_s=config.tasks.grade_timeout_s))
        lines = await asyncio.to_thread(only_final, directory.attempts_jsonl)
        before = await asyncio.to_thread(made_before, records, config, lines)
        log = JsonlSink(directory.attempts_jsonl)
        stack.callback(log.close)
        evaluations = Evaluations(client, pool, config, directory, view, head)
        stack.callback(evaluations.close)
        unsettled: list[Attempt] = []

        def ended(attempt: Attempt) -> None:
            view.attempt(attempt)
            if attempt.state == "queued":
                unsettled.append(attempt)
            else:
                log.write(_line(attempt))

        logged = {(line["problem"], line["number"]) for line in lines}
        for attempt in before:
            if attempt.state != "queued" and (attempt.problem, attempt.number) not in logged:
                log.write(_line(attempt))
        driver = Driver(
            client,
            pool,
            config.tasks,
            seed=config.seed,
            on_start=view.attempt_started,
            on_attempt=ended,
            report_id=partial(report_id, config.scenario),
        )

        async def tasks() -> None:
            await evaluations.at(head())
            await driver.play(load_tasks(config.tasks, seed=config.seed), on_step=evaluations.at, before=before)

        async def last() -> None:
            await evaluations.at(head())
            await evaluations.at(LAST)

        await until(conductor, tasks())
        drain()
        await asyncio.wait({conductor})
        play_s = driver.clock.seconds()
        for attempt in unsettled:
            standing = await asyncio.to_thread(records.receipt_state, attempt.receipt)
            assert standing is not None, "it was reported"
            log.write(_line(attempt.settled(asdict(standing))))
        stopped = asyncio.ensure_future(stop.wait())
        stack.callback(stopped.cancel)
        await until(stopped, last())
        return None if stop.is_set() else Played(play_s=play_s, eval_s=evaluations.seconds)


class Evaluations:
    """The conf's held-out evaluations; each is made once."""

    def __init__(
        self,
        client: Client,
        grader: Grader,
        config: RunConfig,
        directory: RunDirectory,
        view: DriveView,
        head: Callable[[], int],
    ) -> None:
        self.seconds = 0.0
        self._client = client
        self._grader = grader
        self._config = config
        self._view = view
        self._head = head
        self._log = JsonlSink(directory.evaluations_jsonl)
        # Those of an earlier session of the run; the last one, which ends a run, is not among them.
        self._made = {(made["step"], made["temperature"]) for made in directory.evaluations()}

    async def at(self, point: int) -> None:
        """Make the evaluations of this point of `tasks.eval.at`, if it is one; LAST is named by the step it is."""
        tasks, options = self._config.tasks, self._config.tasks.eval
        if not options.samples or point not in options.at:
            return
        problems = eval_problems(tasks, seed=self._config.seed, count=options.samples)
        started = time.monotonic()
        try:
            for temperature in (options.temperature, 0.0) if options.greedy else (options.temperature,):
                if (point, temperature) not in self._made:
                    result = await evaluate(
                        self._client,
                        self._grader,
                        tasks,
                        problems,
                        step=self._head() if point == LAST else point,
                        temperature=temperature,
                        seed=self._config.seed,
                        draw="last" if point == LAST else str(point),
                    )
                    self._made.add((point, temperature))
                    self._log.write(asdict(result))
                    self._view.evaluation(result)
        finally:
            self.seconds += time.monotonic() - started

    def close(self) -> None:
        self._log.close()


def _line(attempt: Attempt) -> dict[str, object]:
    """The attempt without its text, which the records hold."""
    return {key: value for key, value in asdict(attempt).items() if key != "text"}
