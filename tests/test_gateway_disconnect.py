"""Clients that go away: the generation stops, and what is recorded says so."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest
from enginefakes import ScriptedEngine, say
from gatewaykit import TOKEN, Gateway, serving


async def records(gateway: Gateway) -> list[dict[str, Any]]:
    return (await gateway.http.get("/reef/scenarios/s/records")).json()["records"]


async def open_request(gateway: Gateway, body: dict[str, Any]) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, port = gateway.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    payload = json.dumps(body).encode()
    headers = f"host: x\r\nauthorization: Bearer {TOKEN}\r\ncontent-length: {len(payload)}"
    writer.write(f"POST /v1/chat/completions HTTP/1.1\r\n{headers}\r\n\r\n".encode() + payload)
    await writer.drain()
    return reader, writer


@pytest.mark.alone
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("n", [1, 2])
async def test_a_client_that_leaves_stops_the_generation(tmp_path: Path, stream: bool, n: int) -> None:
    engine = ScriptedEngine(lambda _: say("A" * 100, delay_s=0.05))
    async with serving(tmp_path, engine) as gateway:
        body = {"messages": [{"role": "user", "content": "hi"}], "stream": stream, "n": n}
        reader, writer = await open_request(gateway, body)
        if stream:
            await reader.readuntil(b"data: ")
        await asyncio.sleep(0.2)
        writer.close()
        left = time.perf_counter()
        while len(engine.closed_early) < n and time.perf_counter() - left < 2:
            await asyncio.sleep(0.01)
        assert time.perf_counter() - left < 0.5
        await asyncio.sleep(0.1)
        found = await records(gateway)
        assert {entry["agent_record_id"] for entry in found} == set(engine.closed_early)
        for entry in found:
            assert (entry["trainable"], entry["why_not"], entry["finish_reason"]) == (
                False,
                "client_disconnect",
                "abort",
            )
            assert (0 < entry["completion_tokens"] < 100) if stream else entry["completion_tokens"] == 0
            answer = (await gateway.report(entry["agent_record_id"])).json()
            assert (answer["trains"], answer["reason"]) == (False, "client_disconnect")


async def test_a_client_that_leaves_after_the_last_event_changes_nothing(tmp_path: Path) -> None:
    engine = ScriptedEngine(lambda _: say("AB"))
    async with serving(tmp_path, engine) as gateway:
        body = {"messages": [{"role": "user", "content": "hi"}], "stream": True}
        reader, writer = await open_request(gateway, body)
        await reader.readuntil(b"data: [DONE]")
        writer.close()
        await asyncio.sleep(0.1)
        (entry,) = await records(gateway)
        assert (entry["trainable"], entry["finish_reason"]) == (True, "stop")
        assert not engine.closed_early


async def test_a_waiter_that_leaves_is_let_go(tmp_path: Path) -> None:
    async with serving(tmp_path, ScriptedEngine(lambda _: say("AB"))) as gateway:
        receipt = await gateway.receipt()
        waiting = asyncio.create_task(gateway.record(receipt, wait=60))
        await asyncio.sleep(0.1)
        waiting.cancel()
        await asyncio.sleep(0.1)
        names = [task.get_coro().__qualname__ for task in asyncio.all_tasks()]  # type: ignore[union-attr]
        assert "_settled" not in names
