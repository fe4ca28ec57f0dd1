"""A play that was cut short goes on: what was reported is not made again, and nothing waits for ever."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict
from functools import partial
from pathlib import Path

import pytest
from driverkit import Bench, bench, tasks
from gatewaykit import SCENARIO

from saocli.config.run import RunConfig
from saocli.config.tasks import Pacing
from saocli.driver.attempt import Attempt, report_id
from saocli.driver.before import made_before, missing, only_final
from saocli.driver.plan import Plan
from saocli.store.entries import State
from saocli.tasks.graders.grade import Grade
from saocli.tasks.sets import load_tasks

ITEMS = [{"id": name, "prompt": name, "answer": "1"} for name in "ab"]


def run_of(pacing: Pacing) -> RunConfig:
    played = tasks(items=ITEMS, attempts=6, concurrency=4, pacing=pacing)
    return RunConfig(name="x", scenario=SCENARIO, batch_size=4, tasks=played)


async def cut(at: Bench, config: RunConfig, reports: int) -> None:
    """Play until there are so many reports, then no further."""
    problems = load_tasks(config.tasks, seed=0)
    playing = asyncio.create_task(at.driver(config.tasks, report_id=partial(report_id, SCENARIO)).play(problems))
    async with asyncio.timeout(10):
        while len(at.gateway.deps.records.reports(SCENARIO)) < reports:
            await asyncio.sleep(0.002)
    playing.cancel()
    await asyncio.gather(playing, return_exceptions=True)
    await asyncio.sleep(0.3)  # unlike a killed service, this one still accepts what is on its way


async def go_on(at: Bench, config: RunConfig, before: list[Attempt]) -> list[Attempt]:
    driver = at.driver(config.tasks, report_id=partial(report_id, SCENARIO))
    return await asyncio.wait_for(driver.play(load_tasks(config.tasks, seed=0), before=before), 20)


@pytest.mark.parametrize("reports", [2, 6])
@pytest.mark.parametrize(
    ("pacing", "group"), [(Pacing.BATCH, 1), (Pacing.SLOTS, 1), (Pacing.NONE, 1), (Pacing.BATCH, 2)]
)
async def test_each_attempt_is_reported_once(tmp_path: Path, pacing: Pacing, group: int, reports: int) -> None:
    async with bench(tmp_path, batch_size=4, group_size=group, max_staleness=9) as at:
        config, records = run_of(pacing), at.gateway.deps.records
        await cut(at, config, reports)
        before = made_before(records, config, [])
        assert len(before) >= reports
        assert all(attempt.at_s >= 0 and attempt.score == 1.0 and attempt.text == "A" for attempt in before)
        await go_on(at, config, before)
        at.queue.drain()
        async with asyncio.timeout(10):
            while records.counts().trained < 12:
                await asyncio.sleep(0.005)
        made = made_before(records, config, [])
        assert sorted((one.problem, one.number) for one in made) == [(name, n) for name in "ab" for n in range(1, 7)]
        assert [entry.standing.state for entry in records.reports(SCENARIO)] == [State.TRAINED] * 12


async def test_a_dropped_attempt_of_a_group_is_made_up_for_once(tmp_path: Path) -> None:
    """The grader fails at a's second attempt, so that a third is made; the play is cut after that."""
    async with bench(tmp_path, batch_size=2, group_size=2, max_staleness=9) as at:
        config = RunConfig(name="x", scenario=SCENARIO, batch_size=2, tasks=tasks(items=ITEMS, attempts=2))
        at.grader.grade_of = lambda problem, n: Grade(score=1.0) if (problem.id, n) != ("a", 2) else Grade(error="no")
        await cut(at, config, 2)
        lines = [asdict(one) for one in at.attempts if one.state is None]
        for line in lines:
            del line["text"]
        before = made_before(at.gateway.deps.records, config, lines)
        assert [(one.problem, one.number) for one in before] == [("a", 2), ("a", 1), ("a", 3)]
        await go_on(at, config, before)
        numbers = [(one.problem, one.number) for one in made_before(at.gateway.deps.records, config, [])]
        assert numbers == [("a", 1), ("a", 3), ("b", 1), ("b", 2)]


def attempt(problem: str, number: int, state: str) -> Attempt:
    return Attempt(
        problem=problem,
        task=problem,
        number=number,
        of=2,
        receipt=f"{problem}{number}",
        text="",
        completion_tokens=1,
        finish_reason="stop",
        at_s=0.0,
        score=1.0,
        state=state,
    )


def test_what_is_missing_of_a_group() -> None:
    lost = [attempt("a", 1, "dropped"), attempt("a", 2, "trained"), attempt("b", 1, "dropped")]
    assert list(missing(lost, 2)) == ["a", "b"]
    assert list(missing([*lost, attempt("a", 3, "queued")], 2)) == ["b"]
    assert list(missing([*lost, attempt("a", 3, "dropped")], 2)) == ["a", "b"]


def test_a_plan_gives_no_number_twice() -> None:
    config = run_of(Pacing.BATCH)
    problems = load_tasks(config.tasks, seed=0)
    plan = Plan(problems, attempts=2, order=config.tasks.order, before={("a", 1), ("a", 3)})
    plan.again(problems[0])
    assert [(problem.id, number) for problem, number in (plan.next() for _ in range(len(plan)))] == [
        ("a", 4),
        ("a", 2),
        ("b", 1),
        ("b", 2),
    ]


def test_attempts_that_were_still_queued_leave_the_file(tmp_path: Path) -> None:
    path = tmp_path / "attempts.jsonl"
    lines = [{"problem": "a", "number": n, "state": s} for n, s in enumerate(["trained", "queued", None, "dropped"])]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"problem": "a", "nu')
    final = [lines[0], lines[2], lines[3]]
    assert only_final(path) == final
    assert [json.loads(line) for line in path.read_text().splitlines()] == final
    assert only_final(tmp_path / "none.jsonl") == []
