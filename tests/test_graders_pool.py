"""The pool of grading processes: deadlines, crashes, and nothing left behind."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from typing import Any

import psutil
import pytest

from saocli.config.tasks import TasksConfig, TaskSource
from saocli.tasks.graders.grade import Grade
from saocli.tasks.graders.pool import GraderPool
from saocli.tasks.sets import load_tasks
from saocli.types import Problem

TOWER = r"\boxed{9^{9^{9^{9}}}}"


def problem(grader: str, answer: str = "7", **source: Any) -> Problem:
    return Problem(id="p", messages=(), answer=answer, grader=grader, source=source)


def workers(parent: int) -> list[psutil.Process]:
    return [child for child in psutil.Process(parent).children() if "saocli.tasks.graders.worker" in child.cmdline()]


async def test_scores_come_back_and_the_process_is_reused() -> None:
    async with GraderPool(workers=1, timeout_s=5) as pool:
        assert await pool.grade(problem("boxed"), r"\boxed{7}") == Grade(score=1.0)
        (first,) = workers(os.getpid())
        assert await pool.grade(problem("boxed"), r"\boxed{8}") == Grade(score=0.0)
        assert await pool.grade(problem("letters", "abc"), "aazzzzzz") == Grade(score=0.25)
        assert [worker.pid for worker in workers(os.getpid())] == [first.pid]
    assert not workers(os.getpid())


async def test_a_tower_of_powers_is_an_error_within_its_deadline_and_the_next_reply_is_graded() -> None:
    async with GraderPool(workers=1, timeout_s=2) as pool:
        await pool.grade(problem("math"), r"\boxed{7}")
        (stuck,) = workers(os.getpid())
        start = time.monotonic()
        grade = await pool.grade(problem("math"), TOWER)
        assert time.monotonic() - start < 4
        assert grade.score is None and grade.error is not None and "2 s" in grade.error
        assert not stuck.is_running()
        assert await pool.grade(problem("math"), r"\boxed{7}") == Grade(score=1.0)


async def test_others_are_graded_while_one_hangs() -> None:
    async with GraderPool(workers=2, timeout_s=3) as pool:
        hanging = asyncio.create_task(pool.grade(problem("math"), TOWER))
        grades = await asyncio.gather(*[pool.grade(problem("boxed"), r"\boxed{7}") for _ in range(50)])
        assert grades == [Grade(score=1.0)] * 50
        assert not hanging.done()
        assert (await hanging).score is None


async def test_what_a_grader_raises_is_an_error_not_a_score() -> None:
    async with GraderPool(workers=1, timeout_s=5) as pool:
        grade = await pool.grade(problem("math", r"\frac{"), r"\boxed{1}")
        assert grade.score is None and grade.error is not None and "gold answer" in grade.error
        item = load_tasks(TasksConfig(source=TaskSource.REASONING_GYM, name="prime_factorization", count=1), seed=0)[0]
        grade = await pool.grade(item, r"\boxed{two times three}")
        assert grade.score is None or 0 <= grade.score < 1
        assert (await pool.grade(item, rf"\boxed{{{item.answer}}}")).score == 1


async def test_a_killed_worker_is_an_error_and_an_idle_one_that_died_costs_nothing() -> None:
    async with GraderPool(workers=1, timeout_s=20) as pool:
        await pool.grade(problem("math"), r"\boxed{7}")
        busy = asyncio.create_task(pool.grade(problem("math"), TOWER))
        await asyncio.sleep(0.3)
        os.kill(workers(os.getpid())[0].pid, signal.SIGKILL)
        grade = await busy
        assert grade.score is None and grade.error is not None and "ended" in grade.error
        await pool.grade(problem("boxed"), r"\boxed{7}")
        os.kill(workers(os.getpid())[0].pid, signal.SIGKILL)
        await asyncio.sleep(0.3)
        assert await pool.grade(problem("boxed"), r"\boxed{7}") == Grade(score=1.0)


async def test_a_cancelled_grading_frees_its_place() -> None:
    async with GraderPool(workers=1, timeout_s=60) as pool:
        task = asyncio.create_task(pool.grade(problem("math"), TOWER))
        await asyncio.sleep(1.0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not workers(os.getpid())
        assert await pool.grade(problem("boxed"), r"\boxed{7}") == Grade(score=1.0)


ORPHAN = f"""
import asyncio
from saocli.tasks.graders.pool import GraderPool
from saocli.types import Problem

async def main():
    pool = GraderPool(workers=2, timeout_s=600)
    await pool.grade(Problem(id="p", messages=(), answer="7", grader="boxed"), "7")
    print("started", flush=True)
    await pool.grade(Problem(id="p", messages=(), answer="7", grader="math"), {TOWER!r})

asyncio.run(main())
"""


def test_a_stuck_worker_dies_with_its_parent() -> None:
    parent = subprocess.Popen([sys.executable, "-c", ORPHAN], stdout=subprocess.PIPE)
    assert parent.stdout is not None and parent.stdout.readline() == b"started\n"
    time.sleep(1.5)
    left = workers(parent.pid)
    assert left
    parent.kill()
    parent.wait()
    parent.stdout.close()
    _, alive = psutil.wait_procs(left, timeout=5)
    assert not alive


def test_a_grade_is_a_score_or_an_error() -> None:
    for wrong in ({}, {"score": 1.0, "error": "x"}):
        with pytest.raises(ValueError, match="either"):
            Grade(**wrong)


def test_the_worker_loads_no_torch() -> None:
    code = (
        "import sys; from saocli.tasks.graders import worker, registry\n"
        "[registry.load(name) for name in ('boxed', 'exact', 'letters', 'math')]\n"
        "print([name for name in ('torch', 'transformers', 'hydra') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
