"""Held-out evaluation: which seeds it draws with, and that nothing of it trains."""

from __future__ import annotations

from pathlib import Path

from driverkit import Bench, bench, problem, tasks

from saocli.config.tasks import EvalConfig
from saocli.driver import Evaluation, evaluate

PROBLEMS = [problem(name) for name in "abc"]


async def evaluated(at: Bench, *, step: int, draw: str, temperature: float = 1.0) -> Evaluation:
    config = tasks(eval=EvalConfig(samples=3, concurrency=2))
    return await evaluate(at.client, at.grader, config, PROBLEMS, step=step, temperature=temperature, seed=0, draw=draw)


async def test_equal_draws_have_equal_seeds_at_whatever_step(tmp_path: Path) -> None:
    async with bench(tmp_path) as at:
        short = await evaluated(at, step=12, draw="last")
        long = await evaluated(at, step=48, draw="last")
        await evaluated(at, step=0, draw="0")
        seeds = [request.sampling.seed for request in at.engine.requests]
        assert sorted(seeds[:3]) == sorted(seeds[3:6])
        assert not set(seeds[:3]) & set(seeds[6:])
        assert (short.step, long.step, short.samples, short.passed) == (12, 48, 3, 3.0)


async def test_nothing_of_it_is_reported(tmp_path: Path) -> None:
    async with bench(tmp_path) as at:
        result = await evaluated(at, step=0, draw="0", temperature=0.0)
        assert result.temperature == 0.0
        assert {request.sampling.temperature for request in at.engine.requests} == {0.0}
        assert at.gateway.deps.records.page("s") == []
        assert len(at.gateway.deps.records.page("s-eval")) == 3
