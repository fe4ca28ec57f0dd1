"""What the driver plays, in which order, and what it waits for."""

from __future__ import annotations

import asyncio
import statistics
from pathlib import Path

import pytest
from driverkit import bench, problem, tasks
from enginefakes import say

from saocli.config.tasks import Order, Pacing
from saocli.driver.attempt import feedback_delay
from saocli.driver.clock import PlayClock
from saocli.driver.plan import Plan
from saocli.errors import ConfigError, RunError
from saocli.tasks.graders.grade import Grade
from saocli.types import Problem

AB = [problem("a"), problem("b")]
PACINGS = [Pacing.BATCH, Pacing.SLOTS]


async def test_attempts_are_made_problem_by_problem_or_round_by_round(tmp_path: Path) -> None:
    async with bench(tmp_path) as at:
        done = await at.play(AB, tasks(attempts=2))
        assert at.started == [("a", 1), ("a", 2), ("b", 1), ("b", 2)]
        assert [(a.problem, a.number, a.step, a.state, a.task) for a in done] == [
            ("a", 1, 1, "trained", "a"),
            ("a", 2, 2, "trained", "a"),
            ("b", 1, 3, "trained", "b"),
            ("b", 2, 4, "trained", "b"),
        ]
        assert at.attempts == done
        at.started.clear()
        await at.play(AB, tasks(attempts=2, order=Order.ROUND_ROBIN))
        assert at.started == [("a", 1), ("b", 1), ("a", 2), ("b", 2)]


@pytest.mark.parametrize("pacing", PACINGS)
async def test_everything_trains_in_batches(tmp_path: Path, pacing: Pacing) -> None:
    async with bench(tmp_path, batch_size=4, max_staleness=9) as at:
        done = await at.play(AB, tasks(attempts=6, concurrency=4, pacing=pacing))
        assert [a.state for a in done] == ["trained"] * 12
        assert len(at.batches) == 3
        assert len({a.receipt for a in done}) == 12


async def test_batches_wait_for_their_step_and_slots_do_not(tmp_path: Path) -> None:
    """Six slots on steps of one rollout: the first is on-policy, later ones are older, none is too old."""
    async with bench(tmp_path, max_staleness=8) as at:
        at.step_s = 0.02
        await at.play(AB, tasks(attempts=9, concurrency=6, pacing=Pacing.SLOTS))
        lags = [taken.lags[0][0] for taken in at.batches]
        assert len(lags) == 18
        assert lags[0] == 0
        assert 0 < max(lags) <= 8
    async with bench(tmp_path / "batch", max_staleness=8) as at:
        at.step_s = 0.02
        await at.play(AB, tasks(attempts=9, concurrency=6))
        assert [taken.lags[0][0] for taken in at.batches] == [0] * 18


async def test_without_pacing_only_slots_are_waited_for(tmp_path: Path) -> None:
    async with bench(tmp_path, max_staleness=99) as at:
        at.step_s = 0.5
        done = await at.play(AB, tasks(attempts=4, concurrency=3, pacing=Pacing.NONE))
        assert [a.state for a in done] == ["queued"] * 8
        assert len(at.batches) <= 1


@pytest.mark.parametrize("pacing", PACINGS)
async def test_what_makes_no_full_batch_is_told_of_at_the_end(tmp_path: Path, pacing: Pacing) -> None:
    async with bench(tmp_path, batch_size=4, max_staleness=9) as at:
        done = await at.play(AB, tasks(attempts=3, concurrency=4, pacing=pacing))
        assert sorted(str(a.state) for a in done) == ["queued"] * 2 + ["trained"] * 4
        assert at.attempts == done
        assert at.gateway.deps.records.counts().queued == 2


async def test_an_arm_that_trains_nothing_is_not_waited_for(tmp_path: Path) -> None:
    async with bench(tmp_path, trains=False, batch_size=4, group_size=4) as at:
        done = await at.play(AB, tasks(attempts=3, concurrency=2))
        assert [(a.state, a.reason, a.score) for a in done] == [("recorded", "untrained_arm", 1.0)] * 6
        assert at.gateway.deps.records.counts().recorded == 6


@pytest.mark.parametrize("pacing", PACINGS)
async def test_a_group_is_made_whole_by_further_attempts(tmp_path: Path, pacing: Pacing) -> None:
    """The second grading of `a` fails, and the first answer to `b` has no token to train on."""
    answers: list[str] = []

    def script(request: object) -> object:
        prompt = bytes(token for token in request.prompt_ids if token < 256).decode()  # type: ignore[attr-defined]
        answers.append("b" if "user\nb" in prompt else "a")
        first_b = answers[-1] == "b" and answers.count("b") == 1
        return say("A", logprobs=(float("-inf"),) * 2) if first_b else say("A")

    async with bench(tmp_path, batch_size=2, group_size=2, max_staleness=9, script=script) as at:  # type: ignore[arg-type]
        at.grader.grade_of = lambda problem, count: (
            Grade(error="broken") if (problem.id, count) == ("a", 2) else Grade(score=1.0)
        )
        done = await at.play(AB, tasks(attempts=4, concurrency=3, pacing=pacing))
        assert len(done) == 10
        states = sorted((a.problem, str(a.state), str(a.reason)) for a in done if a.state != "trained")
        assert states == [("a", "None", "None"), ("b", "recorded", "missing_logprobs")]
        assert len(at.batches) == 4
        assert all(len({sample.group for sample in taken.batch.samples}) == 1 for taken in at.batches)
        numbers = {name: sorted(a.number for a in done if a.problem == name) for name in "ab"}
        assert numbers == {"a": [1, 2, 3, 4, 5], "b": [1, 2, 3, 4, 5]}
        seeds = [request.sampling.seed for request in at.engine.requests]
        assert len(set(seeds)) == 10


async def test_stale_rollouts_of_groups_are_made_up_for(tmp_path: Path) -> None:
    """Five slots on groups of four, and nothing older than the serving weights may train."""
    async with bench(tmp_path, batch_size=4, group_size=4) as at:
        done = await at.play(
            [problem(name) for name in "abcdef"], tasks(attempts=4, concurrency=5, pacing=Pacing.SLOTS)
        )
        assert sum(a.state == "trained" for a in done) == 24
        assert sum(a.reason == "stale" for a in done) > 0
        assert len(at.batches) == 6
        assert all(lag == (0,) for taken in at.batches for lag in taken.lags)


async def test_groups_that_cannot_be_made_whole_end_the_play(tmp_path: Path) -> None:
    async with bench(tmp_path, batch_size=2, group_size=2) as at:
        at.grader.grade_of = lambda *_: Grade(error="broken")
        with pytest.raises(RunError, match="5 attempts did not train"):
            await at.play(AB, tasks(attempts=2))
        assert len(at.attempts) == 5


async def test_too_few_slots_for_a_batch_are_refused(tmp_path: Path) -> None:
    async with bench(tmp_path, batch_size=4) as at:
        with pytest.raises(ConfigError, match=r"tasks\.concurrency is 3"):
            await at.play(AB, tasks(attempts=4, concurrency=3, pacing=Pacing.SLOTS))


@pytest.mark.parametrize("pacing", PACINGS)
async def test_each_step_is_told_once_and_nothing_begins_meanwhile(tmp_path: Path, pacing: Pacing) -> None:
    async with bench(tmp_path, batch_size=2, max_staleness=9) as at:
        told: list[int] = []
        begun: list[int] = []

        async def on_step(step: int) -> None:
            told.append(step)
            before = len(at.started)
            await asyncio.sleep(0.3)
            begun.append(len(at.started) - before)

        done = await at.play(AB, tasks(attempts=4, concurrency=3, pacing=pacing), on_step=on_step)
        assert sorted(told) == [1, 2, 3, 4]
        assert begun == [0] * 4
        assert max(a.at_s for a in done) < 1.2, "the evaluations' 1.2 s do not count"


async def test_feedback_comes_later_and_its_delay_counts(tmp_path: Path) -> None:
    async with bench(tmp_path) as at:
        done = await at.play(AB, tasks(feedback_s=0.2))
        assert 0.2 < done[0].at_s < done[1].at_s - 0.2


def test_delays_are_log_normal_and_fixed_by_the_seed() -> None:
    delays = [feedback_delay(2.0, 1.0, seed=0, problem="p", number=n) for n in range(4000)]
    assert delays[7] == feedback_delay(2.0, 1.0, seed=0, problem="p", number=7)
    assert statistics.median(delays) == pytest.approx(2.0, rel=0.05)
    # The mean of a log-normal is m·exp(σ²/2).
    assert statistics.fmean(delays) == pytest.approx(2.0 * 2.71828**0.5, rel=0.05)
    assert feedback_delay(2.0, 0.0, seed=0, problem="p", number=1) == 2.0


@pytest.mark.parametrize(
    ("order", "expected"),
    [(Order.ROUND_ROBIN, "a1 b1 a2 b2 c1 d1 c2 d2"), (Order.BY_PROBLEM, "a1 a2 b1 b2 c1 c2 d1 d2")],
)
def test_a_later_phase_waits_for_every_attempt_at_the_one_before(order: Order, expected: str) -> None:
    problems = [
        Problem(id=name, messages=(), answer="", grader="exact", phase=phase)
        for name, phase in (("c", 1), ("a", 0), ("d", 1), ("b", 0))
    ]
    plan = Plan(problems, attempts=2, order=order)
    played = [plan.next() for _ in range(len(plan))]
    assert " ".join(f"{problem.id}{number}" for problem, number in played) == expected


def test_further_attempts_go_first_and_have_numbers_of_their_own() -> None:
    plan = Plan(AB, attempts=1, order=Order.BY_PROBLEM)
    first = plan.next()
    plan.again(first[0])
    assert [(p.id, number) for p, number in (plan.next(), plan.next())] == [("a", 2), ("b", 1)]
    plan.again(first[0])
    assert plan.next()[1] == 3
    with pytest.raises(RunError):
        plan.again(first[0])


def test_the_clock_stands_still_while_paused() -> None:
    clock = PlayClock()
    clock.start()
    with clock.paused():
        before = clock.seconds()
        for _ in range(3):
            assert clock.seconds() == before
    assert clock.seconds() >= before
