"""A gateway over real HTTP: real store, tokenizer and server around a scripted engine."""

from __future__ import annotations

import socket
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import httpx

from saocli.engine.base import Engine
from saocli.gateway.app import make_app
from saocli.gateway.codec import HFCodec
from saocli.gateway.connection import Bounds
from saocli.gateway.deps import GatewayDeps, HealthState
from saocli.gateway.server import serve
from saocli.models.tiny import build_tiny
from saocli.store.database import Database
from saocli.store.records import Records
from saocli.store.releases import Releases
from saocli.types import Operation, Release

TOKEN = "test-token"
DEFAULT_BOUNDS = Bounds()
SCENARIO = "s"


@cache
def tiny_codec() -> HFCodec:
    with tempfile.TemporaryDirectory() as folder:
        build_tiny(Path(folder), seed=0)
        return HFCodec(Path(folder))


def base_release(scenario: str = SCENARIO) -> Release:
    return release(0, Operation.BASE, parent=None, scenario=scenario)


def release(
    step: int, operation: Operation = Operation.TRAINING, *, parent: str | None, scenario: str = SCENARIO, **fields: Any
) -> Release:
    defaults: dict[str, Any] = {
        "release_id": f"{scenario}@{step}",
        "scenario": scenario,
        "step": step,
        "operation": operation,
        "current": True,
        "parent_release_id": parent,
        "weight_version": f"{scenario}@{step}",
        "arm": "sao",
        "created_at": 1000.0 + step,
        "receipts": (),
        "metrics": {},
        "checkpoint": None,
        "digest": "d",
    }
    return Release(**(defaults | fields))


@dataclass
class Gateway:
    """A running service and a client that holds its token."""

    url: str
    http: httpx.AsyncClient
    deps: GatewayDeps
    woken: list[float] = field(default_factory=list)

    async def chat(self, content: str = "hi", headers: dict[str, str] | None = None, **fields: Any) -> httpx.Response:
        body = {"messages": [{"role": "user", "content": content}], **fields}
        return await self.http.post("/v1/chat/completions", json=body, headers=headers)

    async def receipt(self, **fields: Any) -> str:
        response = await self.chat(**fields)
        assert response.status_code == 200, response.text
        return response.headers["x-reef-agent-record-id"]

    async def report(self, *receipts: str, score: Any = 1.0, **fields: Any) -> httpx.Response:
        return await self.http.post("/reef/report", json={"score": score, "references": list(receipts), **fields})

    async def record(self, receipt: str, wait: float = 0.0) -> dict[str, Any]:
        params: dict[str, Any] = {"receipt": receipt, "wait": wait}
        answer = await self.http.get(f"/reef/scenarios/{SCENARIO}/records", params=params)
        assert answer.status_code == 200, answer.text
        return answer.json()["records"][0]


def make_deps(database: Database, engine: Engine, *, woken: list[float] | None = None, **options: Any) -> GatewayDeps:
    """A gateway's parts over this database, which gets a base release."""
    records, releases = Records(database), Releases(database)
    told: list[float] = [] if woken is None else woken
    defaults: dict[str, Any] = {
        "context_length": 256,
        "health": lambda: HealthState(ok=True),
        "status": lambda: {"phase": "idle"},
        "on_report_accepted": lambda: told.append(time.monotonic()),
    }
    if releases.head(SCENARIO) is None:
        releases.commit(base_release(), report_ids=())
    return GatewayDeps(
        engine=engine,
        codec=tiny_codec(),
        records=records,
        releases=releases,
        scenario=SCENARIO,
        model="tiny",
        token=TOKEN,
        **(defaults | options),
    )


@asynccontextmanager
async def serving(
    folder: Path, engine: Engine, *, bounds: Bounds = DEFAULT_BOUNDS, **options: Any
) -> AsyncIterator[Gateway]:
    woken: list[float] = []
    database = Database(folder / "records.db")
    deps = make_deps(database, engine, woken=woken, **options)
    # With proto 0 asyncio would leave Nagle's algorithm on, which costs 40 ms per answer.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", 0))
    end = await serve(make_app(deps), listener, bounds)
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    try:
        async with httpx.AsyncClient(base_url=url, headers={"authorization": f"Bearer {TOKEN}"}, timeout=20) as http:
            yield Gateway(url=url, http=http, deps=deps, woken=woken)
    finally:
        await end()
        database.close()
