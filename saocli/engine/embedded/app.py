"""The embedded engine's HTTP face: the routes of SGLang that `engine.client` uses, for one scheduler."""

from __future__ import annotations

import asyncio
import hmac
import json
from asyncio import Future
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from saocli.engine.embedded.request import parse_generate
from saocli.engine.embedded.scheduler import Scheduler
from saocli.engine.embedded.sequence import Sequence
from saocli.engine.embedded.weights import Checkpoint
from saocli.errors import ContextLengthExceeded, EngineError

# Streams are looked at this often instead of being woken per token: chunks are cumulative, so a fast decode would send
# O(T²) bytes, and the wake-ups would take the interpreter from the decode thread.
_STREAM_INTERVAL_S = 0.02


def make_app(scheduler: Scheduler, *, key: str, folder: Path) -> ASGIApp:
    """`key`: the bearer token of every route but /health. `folder`: where the model came from, for /model_info."""
    live: set[str] = set()

    async def generate(request: Request) -> Response:
        body = await _json(request)
        rid = str(body.get("rid") or uuid4())
        if rid in live:
            raise EngineError(f"a request with rid {rid} is running")
        sequence = parse_generate(body, rid, scheduler.model)
        serving = _served(scheduler, sequence, request, live)
        if body.get("stream"):
            return StreamingResponse(_events(scheduler, sequence, serving), media_type="text/event-stream")
        async with serving as (done, gone):
            await asyncio.wait({done, gone}, return_when=asyncio.FIRST_COMPLETED)
        return JSONResponse(sequence.answer(scheduler.version))

    async def abort(request: Request) -> Response:
        body = await _json(request)
        scheduler.abort(None if body.get("abort_all") else str(body.get("rid")))
        return JSONResponse({"success": True})

    async def update(request: Request) -> Response:
        body = await _json(request)
        path, version = body.get("model_path"), body.get("weight_version")
        if not isinstance(path, str) or not isinstance(version, str):
            raise EngineError("model_path and weight_version must be strings")
        try:
            checkpoint = await asyncio.to_thread(Checkpoint, Path(path), scheduler.model.module)
        except EngineError as error:
            return JSONResponse({"success": False, "message": error.message}, status_code=400)
        if body.get("abort_all_requests"):
            scheduler.abort(None)
        await asyncio.wrap_future(scheduler.swap(checkpoint, version))
        return JSONResponse({"success": True, "message": f"serving {version}", "num_paused_requests": 0})

    async def model_info(request: Request) -> Response:
        return JSONResponse({"model_path": str(folder), "weight_version": scheduler.version})

    async def health(request: Request) -> Response:
        return Response()

    app = Starlette(
        routes=[
            Route("/generate", generate, methods=["POST"]),
            Route("/abort_request", abort, methods=["POST"]),
            Route("/update_weights_from_disk", update, methods=["POST"]),
            Route("/model_info", model_info),
            Route("/health", health),
        ],
        exception_handlers={EngineError: _refuse},
    )
    return _Bearer(app, key)


class _Bearer:
    """Lets only requests with the key through."""

    def __init__(self, app: ASGIApp, key: str) -> None:
        self._app = app
        self._expected = f"Bearer {key}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] != "/health":
            given = dict(scope["headers"]).get(b"authorization", b"")
            if not hmac.compare_digest(given, self._expected):
                await JSONResponse({"error": "wrong or missing key"}, status_code=401)(scope, receive, send)
                return
        await self._app(scope, receive, send)


@asynccontextmanager
async def _served(
    scheduler: Scheduler, sequence: Sequence, request: Request, live: set[str]
) -> AsyncIterator[tuple[Future[None], Future[None]]]:
    """Have `sequence` decoded; gives what ends the waiting: done, or the client is gone. Left early, it is aborted."""

    async def disconnect() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    live.add(sequence.rid)
    scheduler.submit(sequence)
    gone = asyncio.ensure_future(disconnect())
    try:
        yield asyncio.wrap_future(sequence.done), gone
    finally:
        gone.cancel()
        live.discard(sequence.rid)
        if not sequence.done.done():
            scheduler.abort(sequence.rid)


async def _events(
    scheduler: Scheduler, sequence: Sequence, serving: AbstractAsyncContextManager[tuple[Future[None], Future[None]]]
) -> AsyncIterator[str]:
    """Cumulative answers as server-sent events, each with at least one token more than the one before."""
    async with serving as (done, gone):
        sent = 0
        while not gone.done():
            await asyncio.wait({done, gone}, timeout=_STREAM_INTERVAL_S, return_when=asyncio.FIRST_COMPLETED)
            answer = sequence.answer(scheduler.version)
            meta = answer["meta_info"]
            if meta["finish_reason"] or meta["completion_tokens"] > sent:
                sent = meta["completion_tokens"]
                yield f"data: {json.dumps(answer)}\n\n"
            if meta["finish_reason"]:
                yield "data: [DONE]\n\n"
                return


async def _json(request: Request) -> dict[str, Any]:
    try:
        body = json.loads(await request.body())
    except ValueError as error:
        raise EngineError(f"the body is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise EngineError("the body must be a JSON object")
    return body


def _refuse(request: Request, error: Exception) -> Response:
    code = "context_length_exceeded" if isinstance(error, ContextLengthExceeded) else "bad_request"
    message = error.message if isinstance(error, EngineError) else str(error)
    return JSONResponse({"error": {"code": code, "message": message}}, status_code=400)
