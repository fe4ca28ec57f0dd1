"""A connection that does not wait for ever: uvicorn's HTTP/1.1 protocol with deadlines and a limit of connections."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass

import h11
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol

from saocli.gateway.errors import RETRY, ApiError


@dataclass(frozen=True, kw_only=True, slots=True)
class Bounds:
    """What a connection may cost."""

    connections: int = 4096  # open at a time
    head_s: float = 10.0  # from its first byte (of a new connection: from its start) to the end of a request's head
    body_s: float = 30.0  # from there to the end of its body, and besides
    body_bytes_per_s: float = 64 * 1024  # the time that its size takes at this rate
    body_bytes: int = 8 * 2**20  # the size taken for a body that does not say its own
    head_bytes: int = 32 * 1024  # a head that is longer and not complete is refused


def protocol(bounds: Bounds) -> type[H11Protocol]:
    """The protocol class that uvicorn makes one of for each connection."""

    class Bounded(BoundedProtocol):
        pass

    Bounded.bounds = bounds
    return Bounded


class BoundedProtocol(H11Protocol):
    """Answers 408 to a request that does not arrive in time, and 503 to a connection too many; closes both."""

    bounds = Bounds()
    _deadline: asyncio.TimerHandle | None = None
    _awaited: tuple[str, object] | None = None  # head or body, and the request before it or its own

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.bounds.connections:
            message = f"{self.bounds.connections} connections are open (gateway.max_connections)"
            self._refuse(ApiError(503, message, code="too_many_connections", headers=RETRY))
        else:
            self._await("head")

    def connection_lost(self, exc: Exception | None) -> None:
        self._await(None)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._await(self._missing())

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._await(self._missing())

    def send_400_response(self, msg: str) -> None:
        """Called while h11's error is handled, which knows a better status."""
        status = getattr(sys.exception(), "error_status_hint", 400)
        self._refuse(ApiError(status, msg, code="invalid_http"))

    def _missing(self) -> str | None:
        """The part of a request that has begun to arrive and is not whole."""
        state = self.conn.their_state
        if state is h11.SEND_BODY:
            return "body"
        return "head" if state is h11.IDLE and self.conn.trailing_data[0] else None

    def _await(self, part: str | None) -> None:
        """Set the deadline of what is missing; more of the same part does not move it."""
        awaited = None if part is None else (part, self.cycle)
        if awaited == self._awaited:
            return
        if self._deadline is not None:
            self._deadline.cancel()
        self._awaited = awaited
        self._deadline = self.loop.call_later(self._patience(part), self._too_slow, part) if part else None

    def _patience(self, part: str | None) -> float:
        if part == "head":
            return self.bounds.head_s
        declared = dict(self.headers).get(b"content-length")
        size = min(int(declared), self.bounds.body_bytes) if declared else self.bounds.body_bytes
        return self.bounds.body_s + size / self.bounds.body_bytes_per_s

    def _too_slow(self, part: str) -> None:
        seconds = self._patience(part)
        if self.cycle is not None:
            # Who reads the body is told that the client is gone.
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        message = f"the request's {part} did not arrive within {seconds:.0f} s"
        self._refuse(ApiError(408, message, code="request_timeout"))

    def _refuse(self, error: ApiError) -> None:
        """Answer, unless an answer has begun, and close."""
        if self.transport.is_closing():
            return
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            body = json.dumps(error.body()).encode()
            headers: Mapping[str, str] = {
                "content-type": "application/json",
                "content-length": str(len(body)),
                "connection": "close",
                **(error.headers or {}),
            }
            response = h11.Response(
                status_code=error.status, headers=list(headers.items()), reason=STATUS_PHRASES.get(error.status, b"")
            )
            for event in (response, h11.Data(data=body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()
