"""The client against a raw server: what it sends again, and what it gives up on."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from saocli.client import Client
from saocli.errors import Refused, Unreachable


@asynccontextmanager
async def server(
    broken: int, answer: str = '{"trains": true}', status: str | Callable[[], str] = "200 OK"
) -> AsyncIterator[tuple[str, list[bytes]]]:
    """Hangs up on the first `broken` requests, then answers; collects the bodies."""
    bodies: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(
            int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")
        )
        bodies.append(await reader.readexactly(length))
        if len(bodies) > broken:
            said = status if isinstance(status, str) else status()
            writer.write(f"HTTP/1.1 {said}\r\ncontent-length: {len(answer)}\r\n\r\n{answer}".encode())
            await writer.drain()
        writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with listening:
        yield f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}", bodies


async def report(url: str, **options: float) -> dict[str, object]:
    client = Client(url, "t", scenario="s", **options)
    try:
        return await client.report(["r"], 1.0)
    finally:
        await client.close()


async def test_a_broken_connection_is_tried_again_with_the_same_report_id() -> None:
    async with server(broken=2) as (url, bodies):
        assert await report(url) == {"trains": True}
    assert len(bodies) == 3
    assert len({json.loads(body)["agent_record_id"] for body in bodies}) == 1


async def test_three_broken_connections_are_the_end() -> None:
    async with server(broken=9) as (url, bodies):
        with pytest.raises(Unreachable, match=url):
            await report(url)
    assert len(bodies) == 3


async def test_a_rejection_is_not_tried_again() -> None:
    async with server(broken=0, answer='{"error": {"message": "no such receipt"}}', status="404 Not Found") as (
        url,
        bodies,
    ):
        with pytest.raises(Refused, match="no such receipt"):
            await report(url)
    assert len(bodies) == 1


@pytest.mark.parametrize("status", ["429 Too Many Requests", "503 Service Unavailable"])
async def test_a_service_that_says_when_is_asked_again_then(status: str) -> None:
    busy = f"{status}\r\nretry-after: 1"
    answers = iter([busy, busy, "200 OK"])
    async with server(broken=0, status=lambda: next(answers)) as (url, bodies):
        start = time.monotonic()
        assert await report(url) == {"trains": True}
        assert 2.0 <= time.monotonic() - start < 6.0
    assert len({json.loads(body)["agent_record_id"] for body in bodies}) == 1
    assert len(bodies) == 3


async def test_patience_has_an_end() -> None:
    busy = '{"error": {"message": "the engine is restarting"}}'
    async with server(broken=0, answer=busy, status="503 Service Unavailable\r\nretry-after: 1") as (url, bodies):
        with pytest.raises(Refused, match=r"the engine is restarting \(HTTP 503, still after 1.5 s\)"):
            await report(url, patience_s=1.5)
    assert len(bodies) == 2


async def test_a_503_that_does_not_say_when_is_the_end() -> None:
    async with server(broken=0, answer="{}", status="503 Service Unavailable") as (url, bodies):
        with pytest.raises(Refused):
            await report(url)
    assert len(bodies) == 1
