"""The token comes before everything."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from enginefakes import ScriptedEngine, say
from gatewaykit import serving

from saocli.gateway.app import ROUTES


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "Bearer",
        "Bearer wrong",
        "Bearer test-token2",
        "Basic test-token",
        "test-token",
        "Bearer t\xe9st",
    ],
)
async def test_every_route_but_healthz_asks_for_the_token(tmp_path: Path, header: str | None) -> None:
    engine = ScriptedEngine(lambda _: say("A"))
    async with serving(tmp_path, engine) as gateway, httpx.AsyncClient(base_url=gateway.url) as stranger:
        headers = [] if header is None else [(b"authorization", header.encode("latin-1"))]
        for method, path, _ in ROUTES:
            response = await stranger.request(method, path.replace("{scenario}", "s"), headers=headers, content=b"{}")
            assert response.status_code == (200 if path == "/healthz" else 401), path
        unknown = await stranger.get("/nope", headers=headers)
        assert unknown.status_code == 401, "not even whether a route exists"
        assert unknown.json()["error"]["code"] == "invalid_api_key"
        assert unknown.headers["www-authenticate"] == "Bearer"
    assert not engine.requests


async def test_the_scheme_is_read_as_http_says(tmp_path: Path) -> None:
    async with serving(tmp_path, ScriptedEngine(lambda _: say("A"))) as gateway:
        answer = await gateway.http.get("/v1/models", headers={"authorization": "bearer test-token"})
        assert answer.status_code == 200
        answer = await gateway.http.get("/nope")
        assert answer.status_code == 404
        assert "GET /nope" in answer.json()["error"]["message"]
        assert (await gateway.http.get("/v1/chat/completions")).status_code == 405


@pytest.mark.alone
async def test_a_stranger_is_refused_before_the_body_is_read(tmp_path: Path) -> None:
    async with serving(tmp_path, ScriptedEngine(lambda _: say("A"))) as gateway:
        host, port = gateway.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"POST /reef/report HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000\r\n\r\n{")
        start = time.perf_counter()
        line = await asyncio.wait_for(reader.readline(), 2)
        assert line.startswith(b"HTTP/1.1 401")
        assert time.perf_counter() - start < 0.5
        writer.close()


async def test_a_body_beyond_the_limit_is_refused_unread(tmp_path: Path) -> None:
    async with serving(tmp_path, ScriptedEngine(lambda _: say("A")), max_body_bytes=1000) as gateway:
        assert (await gateway.chat("x" * 2000)).status_code == 413

        async def chunks() -> AsyncIterator[bytes]:
            for _ in range(20):
                yield b" " * 100

        assert (await gateway.http.post("/reef/report", content=chunks())).status_code == 413
        assert (await gateway.chat("x" * 200)).status_code == 200
