"""Listening: the socket, taken early, and uvicorn inside our event loop."""

from __future__ import annotations

import asyncio
import resource
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import uvicorn
from fastapi import FastAPI

from saocli.errors import MachineError
from saocli.gateway.connection import Bounds, protocol

BACKLOG = 2048
GRACE_S = 3.0  # for open requests when the server ends
OTHER_FILES = 1280  # connections to the engine, the run's own files
KEEP_ALIVE_S = 75  # longer than clients keep idle connections, or one may be closed just as it is used again


def bind(host: str, port: int) -> socket.socket:
    """Take the gateway's port before anything slow starts. Raises MachineError when it is in use."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With the protocol named, asyncio sets TCP_NODELAY; without it every kept-alive answer waits 40 ms.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise MachineError(
            f"cannot listen on {host}:{port} (gateway.port): {error.strerror}",
            fix="stop what listens there (`sao stop` for a run of ours), or choose another with gateway.port=…",
        ) from error
    return listener


def local_url(host: str, port: int) -> str:
    """Where this machine's clients reach a service that was bound to `host`."""
    reachable = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{reachable}]:{port}" if ":" in reachable else f"http://{reachable}:{port}"


async def serve(app: FastAPI, listener: socket.socket, bounds: Bounds) -> Callable[[], Awaitable[None]]:
    """Answer on `listener`; returns once it does, with what ends it."""
    _allow_files(bounds.connections + OTHER_FILES)
    server = _Server(
        uvicorn.Config(
            app,
            http=protocol(bounds),
            ws="none",
            h11_max_incomplete_event_size=bounds.head_bytes,
            log_config=None,
            access_log=False,
            server_header=False,
            lifespan="off",
            timeout_keep_alive=KEEP_ALIVE_S,
        )
    )
    listener.listen(BACKLOG)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    while not server.started:
        await asyncio.sleep(0.01)

    async def end() -> None:
        """Stop accepting, give open requests a moment, and end."""
        server.should_exit = True
        try:
            await asyncio.wait_for(asyncio.shield(serving), GRACE_S)
        except TimeoutError:
            server.force_exit = True
            await serving

    return end


def _allow_files(count: int) -> None:
    """Each connection is a file; where the soft limit is lower than the hard one, use it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count if hard == resource.RLIM_INFINITY else min(count, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


class _Server(uvicorn.Server):
    """Signals are the command line's to handle."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
