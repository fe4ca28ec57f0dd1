"""Plays tasks through the gateway over HTTP as any outside client would: attempt, grade, report, wait until trained."""

from __future__ import annotations

import asyncio
import hashlib
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import httpx

from saocli.config.tasks import EvalConfig, TasksConfig
from saocli.errors import Refused, RunError, Unreachable
from saocli.types import Problem

RECEIPT_HEADER = "x-reef-agent-record-id"
LONG_POLL_S = 30.0


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


class Client:
    """The gateway's routes that an attempt needs."""

    def __init__(self, url: str, token: str, *, scenario: str, timeout_s: float = 600.0) -> None:
        self.url = url
        self.scenario = scenario
        self._http = httpx.AsyncClient(
            base_url=url,
            headers={"authorization": f"Bearer {token}"},
            timeout=httpx.Timeout(timeout_s, connect=5.0),
            limits=httpx.Limits(max_connections=None),
        )

    async def close(self) -> None:
        await self._http.aclose()

    async def contract(self) -> dict[str, Any]:
        return await self._json("GET", f"/reef/scenarios/{self.scenario}/contract")

    async def answer(
        self, problem: Problem, *, config: TasksConfig, seed: int, temperature: float, scenario: str, tag: str
    ) -> tuple[str, dict[str, Any]]:
        """Ask for one answer; returns its receipt and the completion."""
        response = await self._send(
            "POST",
            "/v1/chat/completions",
            headers={"x-reef-scenario": scenario, "x-reef-tag-task": tag},
            json={
                "model": "sao",
                "messages": [dict(message) for message in problem.messages],
                "max_tokens": config.max_tokens,
                "temperature": temperature,
                "seed": seed,
                **({"stop": list(config.stop)} if config.stop else {}),
            },
        )
        return response.headers[RECEIPT_HEADER], response.json()

    async def report(self, receipts: Sequence[str], score: float, **fields: Any) -> dict[str, Any]:
        body = {"score": score, "references": list(receipts), **fields}
        return await self._json("POST", "/reef/report", json=body, headers={"x-reef-scenario": self.scenario})

    async def settled(self, receipt: str) -> dict[str, Any]:
        """Wait until a reported receipt is trained, dropped or known never to train."""
        path = f"/reef/scenarios/{self.scenario}/records"
        while True:
            page = await self._json("GET", path, params={"receipt": receipt, "wait": LONG_POLL_S})
            record: dict[str, Any] = page["records"][0]
            if record["state"] in ("trained", "dropped", "recorded"):
                return record

    async def _json(self, method: str, path: str, **kwargs: Any) -> dict[str, Any]:
        answer: dict[str, Any] = (await self._send(method, path, **kwargs)).json()
        return answer

    async def _send(self, method: str, path: str, **kwargs: Any) -> httpx.Response:
        try:
            response = await self._http.request(method, path, **kwargs)
        except httpx.TransportError as error:
            raise Unreachable(
                f"no answer from {self.url}: {error or type(error).__name__}",
                fix="start it with `sao serve`, or name it with --url",
            ) from error
        if response.is_error:
            raise Refused(f"{refusal(response)} (HTTP {response.status_code})", fix=_fix(response.status_code))
        return response


def refusal(response: httpx.Response) -> str:
    """The service's own words about why it said no."""
    try:
        return str(response.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return response.text[:500] or response.reason_phrase


def _fix(status: int) -> str | None:
    return "give the token by SAO_TOKEN, or run from the folder that holds runs/" if status == 401 else None


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
        batch = (await self._client.contract())["batch_size"] if waits else len(plan)
        waiting: dict[asyncio.Task[dict[str, Any]], Attempt] = {}
        done: list[Attempt] = []
        last = 0
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
        for task in waiting:
            task.cancel()
        return [*done, *waiting.values()]

    async def _wave(self, wave: Sequence[tuple[Problem, int]]) -> list[Attempt]:
        slots = asyncio.Semaphore(self._config.concurrency)

        async def one(problem: Problem, number: int) -> Attempt:
            async with slots:
                self._on_start(problem.id, number, self._config.attempts)
                return await self._attempt(problem, number)

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(problem, number)) for problem, number in wave]
        return [task.result() for task in tasks]

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

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(problem)) for problem in problems]
    grades = [task.result() for task in tasks]
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
