"""The HTTP client against servers that misbehave: raw sockets that say exactly these bytes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from enginekit import ask, final, payload

from saocli.engine.client import HttpEngine
from saocli.errors import ContextLengthExceeded, EngineError

STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"


@asynccontextmanager
async def saying(reply: bytes) -> AsyncIterator[tuple[HttpEngine, list[bytes]]]:
    """An engine behind a server that answers every request with `reply` and hangs up; and the requests it got."""
    requests: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(
            next((line.split(b":")[1] for line in head.lower().split(b"\r\n") if b"content-length" in line), 0)
        )
        requests.append(head + await reader.readexactly(length))
        writer.write(reply)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    engine = HttpEngine(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    try:
        yield engine, requests
    finally:
        await engine.close()
        server.close()


def events(*items: object) -> bytes:
    return STREAM + b"".join(b"data: " + json.dumps(item).encode() + b"\n\n" for item in items)


async def test_text_with_line_separators_of_unicode_stays_in_one_event() -> None:
    said = payload([1, 2], finish_reason=DONE) | {"text": "a\x85b\u2028c\x0bd\x1ce\rf"}
    event = b"data: " + json.dumps(said, ensure_ascii=False).encode() + b"\n\n"  # as SGLang writes it
    async with saying(STREAM + event + b"data: [DONE]\n\n") as (engine, _):
        assert (await final(engine, ask((1,), stream=True))).output_ids == (1, 2)


async def test_a_request_beyond_the_context_length_is_not_sent() -> None:
    async with saying(events(payload([1, 2], finish_reason=DONE))) as (server, requests):
        engine = HttpEngine(server.url, context_length=8)
        with pytest.raises(
            ContextLengthExceeded, match="5 prompt tokens plus 4 new ones exceed the context length of 8"
        ):
            await final(engine, ask((1, 2, 3, 4, 5), max_new_tokens=4))
        assert requests == []
        await final(engine, ask((1, 2, 3, 4, 5), max_new_tokens=3, stream=True))
        await engine.close()


DONE = {"type": "length", "length": 2}


async def test_a_whole_stream() -> None:
    async with saying(events(payload([1]), payload([1, 2], finish_reason=DONE)) + b"data: [DONE]\n\n") as (
        engine,
        requests,
    ):
        assert (await final(engine, ask((1,), stream=True))).output_ids == (1, 2)
    assert len(requests) == 1


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        (events(payload([1])), "without a finish_reason"),
        (events(payload([1]), payload([3, 4], finish_reason=DONE)), "malformed"),
        (STREAM + b"data: {\n\n", "not JSON"),
        (STREAM + b"data: [DONE]\n\n", "without a finish_reason"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 500\r\n\r\ndata: ", "did not answer while generating"),
        (b"HTTP/1.1 503 Busy\r\ncontent-length: 4\r\n\r\nbusy", r"\(503\): busy"),
        (b"", "did not answer while generating"),
    ],
)
async def test_what_is_cut_or_garbled_is_an_error_and_not_retried(reply: bytes, why: str) -> None:
    async with saying(reply) as (engine, requests):
        with pytest.raises(EngineError, match=why):
            await final(engine, ask((1,), stream=True))
        assert len(requests) == 1


async def test_no_server_is_an_error_that_names_the_address() -> None:
    async with saying(b"") as (engine, _):
        pass
    alone = HttpEngine(engine.url)
    with pytest.raises(EngineError, match=engine.url):
        await alone.version()
    await alone.close()


async def test_a_closed_iterator_tells_the_engine() -> None:
    async with saying(events(payload([1]))) as (engine, requests):
        request = ask((1,), stream=True)
        stream = engine.generate(request)
        await anext(stream)
        await stream.aclose()  # type: ignore[attr-defined]
        await until(lambda: len(requests) == 2)
    assert requests[1].startswith(b"POST /abort_request")
    assert request.rid.encode() in requests[1]


async def test_300_slow_generations_at_once_are_each_asked_for_once_and_answered() -> None:
    requests = 0
    all_there = asyncio.Event()
    body = json.dumps(payload([1, 2], finish_reason=DONE)).encode()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal requests
        await reader.readuntil(b"\r\n\r\n")
        requests += 1
        if requests == 300:
            all_there.set()
        await all_there.wait()  # none is answered before all are open
        await asyncio.sleep(2.5)  # longer than an idle connection is kept
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, backlog=512)
    engine = HttpEngine(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    async with asyncio.timeout(30):
        chunks = await asyncio.gather(*(final(engine, ask((1,))) for _ in range(300)))
    await asyncio.sleep(0.1)
    assert requests == 300
    assert {chunk.output_ids for chunk in chunks} == {(1, 2)}
    await engine.close()
    server.close()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(2):
        while not condition():
            await asyncio.sleep(0.01)
