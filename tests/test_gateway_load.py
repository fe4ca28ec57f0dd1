"""Hundreds of clients while a step runs; tests/bench/bench_load.py is the same with a thousand."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from loadkit import Crowd, attempts, check, gateway, in_process, play, resident_mib


@pytest.mark.slow
@pytest.mark.alone
async def test_hundreds_of_clients_while_a_step_runs(tmp_path: Path) -> None:
    """A reader that waited for the step took 10 s."""
    crowd = Crowd(clients=300, cycles=2, pause_s=2.0)
    with gateway(tmp_path, step_s=10.0) as (url, _):
        told = await play(url, crowd)
    check(told, tmp_path, crowd)
    assert told.p99("read") < 0.5
    assert told.p99("report") < 1.5


@pytest.mark.slow
async def test_memory_does_not_grow_with_the_records(tmp_path: Path) -> None:
    """Attempts through the whole service, in this process; tests/bench/bench_memory.py makes 100,000 records."""
    async with in_process(tmp_path) as (http, records):
        await attempts(http, 500)
        before = resident_mib(os.getpid())
        await attempts(http, 2000)
        assert resident_mib(os.getpid()) - before < 8.0
    assert records.counts().queued == 2500
