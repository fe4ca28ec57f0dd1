"""The client against a raw server: what it sends again, and what it gives up on."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from saocli.client import Client
from saocli.errors import Refused, Unreachable


@asynccontextmanager
async def server(
    broken: int, answer: str = '{"trains": true}', status: str = "200 OK"
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
            writer.write(f"HTTP/1.1 {status}\r\ncontent-length: {len(answer)}\r\n\r\n{answer}".encode())
            await writer.drain()
        writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with listening:
        yield f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}", bodies


async def report(url: str) -> dict[str, object]:
    client = Client(url, "t", scenario="s")
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
