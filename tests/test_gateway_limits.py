"""What one client may cost the service: time, connections, headers, generations."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from pathlib import Path

import pytest
from enginefakes import ScriptedEngine, say
from gatewaykit import TOKEN, Gateway, serving

from saocli.gateway.app import ROUTES
from saocli.gateway.connection import Bounds

HEAD = f"POST /reef/report HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {TOKEN}\r\n".encode()
HASTY = Bounds(head_s=0.4, body_s=0.6, body_bytes_per_s=1000.0)


def engine(delay_s: float = 0.0) -> ScriptedEngine:
    return ScriptedEngine(lambda _: say("A" * 20, delay_s=delay_s))


async def connect(gateway: Gateway) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, port = gateway.url.removeprefix("http://").split(":")
    return await asyncio.open_connection(host, int(port))


async def outcome(reader: asyncio.StreamReader) -> tuple[int, dict[str, str], float]:
    """Status, error and seconds until the server has closed the connection; status 0 when it said nothing."""
    start = time.perf_counter()
    said = await asyncio.wait_for(reader.read(), 5)
    head, _, body = said.partition(b"\r\n\r\n")
    status = int(head.split()[1]) if head else 0
    return status, json.loads(body)["error"] if body else {}, time.perf_counter() - start


@pytest.mark.parametrize("sent", [b"", b"GET /healthz HT", HEAD])
async def test_a_head_that_does_not_come_is_not_waited_for(tmp_path: Path, sent: bytes) -> None:
    async with serving(tmp_path, engine(), bounds=HASTY) as gateway:
        reader, writer = await connect(gateway)
        writer.write(sent)
        status, error, seconds = await outcome(reader)
        assert (status, error["code"]) == (408, "request_timeout")
        assert 0.3 < seconds < 2.0
        writer.close()


async def test_a_head_that_trickles_in_has_the_same_deadline(tmp_path: Path) -> None:
    async with serving(tmp_path, engine(), bounds=HASTY) as gateway:
        reader, writer = await connect(gateway)
        answered = asyncio.create_task(outcome(reader))
        for number in range(20):
            if answered.done():
                break
            writer.write(f"x-{number}: y\r\n".encode() if number else HEAD)
            await asyncio.sleep(0.1)
        status, _, seconds = await answered
        assert status == 408
        assert seconds < 1.5
        writer.close()


@pytest.mark.parametrize("framing", [b"content-length: 300", b"transfer-encoding: chunked"])
async def test_a_body_that_does_not_come_is_not_waited_for(tmp_path: Path, framing: bytes) -> None:
    bounds = Bounds(head_s=5.0, body_s=0.4, body_bytes_per_s=1000.0, body_bytes=300)
    async with serving(tmp_path, engine(), bounds=bounds) as gateway:
        reader, writer = await connect(gateway)
        writer.write(HEAD + framing + b"\r\n\r\n" + (b"1\r\n{" if b"chunked" in framing else b"{"))
        status, error, seconds = await outcome(reader)
        assert (status, "body did not arrive" in error["message"]) == (408, True)
        assert 0.5 < seconds < 2.0, "0.4 s and 300 bytes at 1000 a second"
        assert gateway.deps.records.counts().recorded == 0
        names = [task.get_coro().__qualname__ for task in asyncio.all_tasks()]  # type: ignore[union-attr]
        assert not [name for name in names if "run_asgi" in name], "nobody goes on waiting for it"
        writer.close()


async def test_a_patient_client_is_served(tmp_path: Path) -> None:
    """Slow but in time, and idle between requests for longer than a head may take."""
    async with serving(tmp_path, engine(delay_s=0.05), bounds=HASTY) as gateway:
        reader, writer = await connect(gateway)
        for _ in range(2):
            body = b'{"score": 1}'
            writer.write(HEAD + f"content-length: {len(body)}\r\n\r\n".encode())
            await asyncio.sleep(0.3)
            writer.write(body)
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
            await reader.readuntil(b"}")
            await asyncio.sleep(0.6)
        writer.close()
        assert (await gateway.chat()).status_code == 200, "an answer may take as long as it likes"


async def test_a_client_that_leaves_in_its_body_leaves_no_traceback(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(tmp_path, engine()) as gateway:
        _, writer = await connect(gateway)
        writer.write(HEAD + b"content-length: 300\r\n\r\n{")
        await asyncio.sleep(0.1)
        writer.close()
        await asyncio.sleep(0.2)
        assert (await gateway.http.get("/healthz")).status_code == 200
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


async def test_one_connection_too_many_is_told_so(tmp_path: Path) -> None:
    async with serving(tmp_path, engine(), bounds=Bounds(connections=3)) as gateway:
        held = [await connect(gateway) for _ in range(3)]
        await asyncio.sleep(0.05)
        reader, writer = await connect(gateway)
        status, error, seconds = await outcome(reader)
        assert (status, error["code"]) == (503, "too_many_connections")
        assert seconds < 0.5
        for _, open_writer in (*held, (reader, writer)):
            open_writer.close()
        await asyncio.sleep(0.1)
        assert (await gateway.http.get("/healthz")).status_code == 200


async def test_heads_are_bounded_whole_and_in_pieces(tmp_path: Path) -> None:
    async with serving(tmp_path, engine()) as gateway:
        refused = [
            (await gateway.http.get("/healthz", headers={"x": "y" * 40_000})).status_code,
            (await gateway.http.get("/healthz", headers={f"x-{n}": "y" for n in range(120)})).status_code,
            (await gateway.http.get("/healthz?" + "q" * 9_000)).status_code,
        ]
        assert refused == [431, 431, 414]
        reader, writer = await connect(gateway)
        for _ in range(9):
            writer.write(b"x: " + b"y" * 4000)
            await asyncio.sleep(0.01)
        status, error, _ = await outcome(reader)
        assert (status, error["code"]) == (431, "invalid_http")
        writer.close()
        reader, writer = await connect(gateway)
        writer.write(b"\x16\x03\x01 this is not HTTP\r\n\r\n")
        assert (await outcome(reader))[0] == 400
        writer.close()


async def test_no_page_of_another_origin_may_ask(tmp_path: Path) -> None:
    origin = {"origin": "https://example.org", "access-control-request-method": "POST"}
    async with serving(tmp_path, engine()) as gateway:
        for _, path, _ in ROUTES:
            preflight = await gateway.http.options(path.replace("{scenario}", "s"), headers=origin)
            assert preflight.status_code == 405, path
            answer = await gateway.http.get(path.replace("{scenario}", "s"), headers=origin)
            for response in (preflight, answer):
                assert not [name for name in response.headers if name.startswith("access-control")]


async def test_one_generation_too_many_is_told_when_to_ask_again(tmp_path: Path) -> None:
    slow = engine(delay_s=0.05)
    async with serving(tmp_path, slow, max_generations=3) as gateway:
        busy = [asyncio.create_task(gateway.chat(n=2)), asyncio.create_task(gateway.chat(stream=True))]
        await asyncio.sleep(0.3)
        for fields in ({}, {"stream": True}, {"n": 2}):
            refused = await gateway.chat(**fields)
            assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
            error = refused.json()["error"]
            assert error["code"] == "too_many_generations"
            assert "3 generations run, of at most 3" in error["message"]
        assert [answer.status_code for answer in await asyncio.gather(*busy)] == [200, 200]
        assert len(slow.requests) == 3, "a refused request does not reach the engine"
        leaving = asyncio.create_task(gateway.chat(n=3))
        await asyncio.sleep(0.2)
        leaving.cancel()
        await asyncio.sleep(0.2)
        assert gateway.deps.admission.running == 0
        assert (await gateway.chat(n=3)).status_code == 200
