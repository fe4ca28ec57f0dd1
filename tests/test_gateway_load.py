"""Hundreds of clients while a step runs; tests/bench/bench_load.py is the same with a thousand."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import httpx
import pytest
from enginefakes import ScriptedEngine, say
from gatewaykit import TOKEN, make_deps
from loadkit import Crowd, check, gateway, play, resident_mib

from saocli.gateway.app import make_app
from saocli.store.database import Database


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
    """Attempts through the whole service, in this process."""
    deps = make_deps(Database(tmp_path / "records.db"), ScriptedEngine(lambda _: say("AB")), max_outstanding=10**6)
    transport = httpx.ASGITransport(make_app(deps))
    headers = {"authorization": f"Bearer {TOKEN}"}
    async with httpx.AsyncClient(transport=transport, base_url="http://x", headers=headers) as http:
        await attempts(http, 500)
        before = resident_mib(os.getpid())
        await attempts(http, 2000)
        assert resident_mib(os.getpid()) - before < 8.0
    assert deps.records.counts().queued == 2500


async def attempts(http: httpx.AsyncClient, count: int) -> None:
    for _ in range(count):
        answer = await http.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": "hi"}]})
        await http.post("/reef/report", json={"score": 1, "references": [answer.headers["x-reef-agent-record-id"]]})
        await asyncio.sleep(0)
