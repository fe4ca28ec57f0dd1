"""An engine behind SGLang's HTTP protocol: SGLang itself, or the embedded CPU engine that speaks a subset of it."""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import httpx

from saocli.engine.base import GenerateChunk, GenerateRequest
from saocli.engine.payload import Answer, refusal
from saocli.engine.publish import FromDisk, Publisher
from saocli.errors import ContextLengthExceeded, EngineError
from saocli.process import Child, tail

# Hundreds of generations may be open for minutes, so nothing limits reading. Idle connections are dropped before a
# server with uvicorn's 5 s keep-alive drops them: otherwise a request could meet a connection that is being closed.
_LIMITS = httpx.Limits(max_connections=1024, max_keepalive_connections=64, keepalive_expiry=2.0)
_TIMEOUT = httpx.Timeout(None, connect=10.0)
_EXIT_GRACE_S = 1.0
_AWAY_S = 3.0
_SESSION_HEADER = "X-SMG-Routing-Key"  # by which sglang-router keeps requests together


class HttpEngine:
    """The `Engine` protocol over HTTP. Nothing is retried: a request that failed has failed once."""

    def __init__(
        self,
        url: str,
        *,
        key: str | None = None,
        child: Child | None = None,
        publisher: Publisher | None = None,
        context_length: int | None = None,
        behind: Sequence[HttpEngine] = (),
    ) -> None:
        """`key` is sent as bearer token; `child` is the server's process when it is ours, ended by `close`.

        `publisher` does `load`; None: the engine reads the folder by itself. `context_length` is the limit of prompt
        plus new tokens; None: the engine keeps to its own. `behind` are the servers that this one, a router, hands
        generations to: it is told a request's session, and they are told of aborts, for which it has no route.
        """
        self.url = url
        self.child = child
        self._publisher: Publisher = publisher or FromDisk()
        self._context_length = context_length
        self._behind = tuple(behind)
        self._http = httpx.AsyncClient(
            base_url=url,
            headers={"Authorization": f"Bearer {key}"} if key else {},
            limits=_LIMITS,
            timeout=_TIMEOUT,
            trust_env=False,  # a proxy setting must not catch loopback requests
        )
        self._aborts: set[asyncio.Task[None]] = set()
        self._missed_at = -math.inf  # when a server that is not ours did not answer

    @property
    def up(self) -> bool:
        """Whether its process lives; one that is not ours is given a few seconds after it did not answer."""
        if self.child is not None:
            return self.child.returncode is None
        return time.monotonic() - self._missed_at > _AWAY_S

    async def generate(self, request: GenerateRequest) -> AsyncIterator[GenerateChunk]:
        """Sample a response: growing chunks for `request.stream`, else the final one alone.

        Closing the iterator, or cancelling the task that reads it, aborts the request in the engine.

        Raises:
            ContextLengthExceeded: prompt plus max_new_tokens do not fit.
            EngineError: the engine refused, or its answer is malformed.
            ProcessDied: the engine's process ended (with the end of its log).
        """
        self._check_fits(request)
        answer = Answer()
        body = _generate_body(request, unsigned=bool(self._behind))
        headers = {_SESSION_HEADER: request.session} if self._behind and request.session else None
        chunk: GenerateChunk | None = None
        answering = False
        try:
            async with self._http.stream("POST", "/generate", json=body, headers=headers) as response:
                answering = True
                if response.status_code != 200:
                    raise refusal(response.status_code, _decode(await response.aread()))
                if request.stream:
                    async for line in _lines(response):
                        data = line.removeprefix(b"data:").strip()
                        if data and data != b"[DONE]":
                            chunk = answer.add(_parse(data))
                            yield chunk
                else:
                    chunk = answer.add(_parse(await response.aread()))
                    yield chunk
            if chunk is None or chunk.finish_reason is None:
                raise EngineError(f"the engine's answer to {request.rid} ended without a finish_reason")
        except httpx.TransportError as error:
            # An answer that breaks off may be the end of a server behind a router, which is there for the others.
            await self._down(f"generating {request.rid}", error, away=not (answering and self._behind))
        except (GeneratorExit, asyncio.CancelledError):
            if chunk is None or chunk.finish_reason is None:
                for engine in self._behind or (self,):
                    engine._abort_soon(request.rid)
            raise

    async def load(self, folder: Path, version: str) -> None:
        """Swap to the weights in HF folder `folder`; returns once they serve as `version`.

        Raises EngineError if they cannot be loaded: the old ones serve on.
        """
        await self._publisher.publish(self, folder, version)

    async def sleep(self) -> None:
        """Give its GPU memory back; whatever is asked waits for the next `load`. Raises EngineError."""
        await self._publisher.sleep(self)

    async def version(self) -> str:
        """The weight version that serves now."""
        version = (await self.info()).get("weight_version")
        if not isinstance(version, str):
            raise EngineError("the engine's /model_info names no weight_version")
        return version

    async def info(self) -> dict[str, Any]:
        """What the engine says of its model: `model_path`, `weight_version`. Raises EngineError."""
        return await self._call("GET", "/model_info", doing="asking for its version")

    async def workers(self) -> list[str]:
        """A router's: the addresses of the servers it knows, healthy or not. Raises EngineError."""
        workers = (await self._call("GET", "/workers", doing="asking for its workers")).get("workers")
        try:
            return [str(worker["url"]) for worker in workers or ()]
        except (TypeError, KeyError) as error:
            raise EngineError(f"the router's list of workers is malformed: {workers!r}") from error

    async def disconnect(self) -> None:
        """Drop all connections; the engine's process stays as it is."""
        for task in self._aborts:
            task.cancel()
        await self._http.aclose()

    async def close(self) -> None:
        """Drop all connections and end the engine's process if it is ours. Safe to call twice."""
        await self.disconnect()
        if self.child is not None:
            await self.child.stop()

    async def command(self, path: str, body: Mapping[str, Any], *, doing: str) -> dict[str, Any]:
        """POST `body` to a control route; the answer, a refused `{"success": false}` included. Raises EngineError."""
        return await self._call("POST", path, body, doing=doing)

    async def _call(self, method: str, path: str, body: Any = None, *, doing: str) -> dict[str, Any]:
        try:
            response = await self._http.request(method, path, json=body)
        except httpx.TransportError as error:
            await self._down(doing, error)
        answer = _decode(response.content)
        if response.status_code == 200 and (answer is None or isinstance(answer, dict)):
            return answer or {}
        if isinstance(answer, dict) and answer.get("success") is False:
            return answer
        raise refusal(response.status_code, answer)

    def _check_fits(self, request: GenerateRequest) -> None:
        prompt, new = len(request.prompt_ids), request.sampling.max_new_tokens
        if self._context_length is not None and prompt + new > self._context_length:
            raise ContextLengthExceeded(
                f"{prompt} prompt tokens plus {new} new ones exceed the context length of "
                f"{self._context_length} tokens",
                fix="shorten the prompt, ask for fewer tokens, or raise context_length",
            )

    async def _down(self, doing: str, error: httpx.TransportError, *, away: bool = True) -> NoReturn:
        """Raise what explains a broken connection: the process' end if it is ours and ended, else the connection."""
        log = ""
        if self.child is not None:
            # The connection breaks a moment before the exit status is there.
            try:
                await asyncio.wait_for(self.child.wait(), _EXIT_GRACE_S)
            except TimeoutError:
                log = f"; the end of {self.child.log}:\n{tail(self.child.log)}"
            else:
                raise self.child.died(doing) from error
        elif away:
            self._missed_at = time.monotonic()
        cause = str(error) or type(error).__name__
        raise EngineError(f"the engine at {self.url} did not answer while {doing}: {cause}{log}") from error

    def _abort_soon(self, rid: str) -> None:
        """Tell the engine to stop `rid` without making the closing caller wait."""
        if self._http.is_closed:
            return

        async def abort() -> None:
            try:
                await self._http.post("/abort_request", json={"rid": rid}, timeout=5.0)
            except httpx.TransportError:
                return  # closing the connection has told it already

        task = asyncio.ensure_future(abort())
        self._aborts.add(task)
        task.add_done_callback(self._aborts.discard)


def _generate_body(request: GenerateRequest, *, unsigned: bool) -> dict[str, Any]:
    sampling = request.sampling
    params: dict[str, Any] = {
        "max_new_tokens": sampling.max_new_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "frequency_penalty": sampling.frequency_penalty,
        "presence_penalty": sampling.presence_penalty,
    }
    if sampling.stop:
        params["stop"] = list(sampling.stop)
    if sampling.seed is not None:
        # sglang-router reads 64 bits without a sign and SGLang with one: a negative seed becomes one that suits both.
        params["sampling_seed"] = sampling.seed % 2**63 if unsigned else sampling.seed
    return {
        "rid": request.rid,
        "input_ids": list(request.prompt_ids),
        "sampling_params": params,
        "return_logprob": True,
        "stream": request.stream,
    }


async def _lines(response: httpx.Response) -> AsyncIterator[bytes]:
    """The body's lines. httpx' own also end at U+0085, U+2028 and others, which a model may well say in its text."""
    rest = bytearray()
    async for part in response.aiter_bytes():
        *lines, left = part.split(b"\n")
        for line in lines:
            yield bytes(rest + line)
            rest.clear()
        rest += left
    yield bytes(rest)


def _decode(body: bytes) -> Any:
    """JSON where it is, else text."""
    try:
        return json.loads(body)
    except ValueError:
        return body.decode(errors="replace")


def _parse(data: str | bytes) -> Any:
    try:
        return json.loads(data)
    except ValueError as error:
        raise EngineError(f"the engine's answer is not JSON: {data[:200]!r}") from error
