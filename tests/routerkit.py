"""A real sglang-router for tests: where it is, and how to start it."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from killkit import free_port
from sglangkit import ENVIRONMENT

from saocli.engine.client import HttpEngine
from saocli.errors import EngineError
from saocli.process import Child

NEEDS_ROUTER = pytest.mark.skipif(
    not any(ENVIRONMENT.glob("lib/python*/site-packages/sglang_router")),
    reason="no sglang-router: it comes with the SGLang environment, build it with tests/sglang/build_env.sh",
)


@asynccontextmanager
async def router(urls: Sequence[str], log: Path, key: str, policy: str = "manual") -> AsyncIterator[tuple[str, Child]]:
    """A real sglang-router in front of these servers, which all take `key`: its address, once it knows them."""
    port, prometheus = free_port(), free_port()
    argv = [str(ENVIRONMENT / "bin/python"), "-m", "sglang_router.launch_router", "--host", "127.0.0.1"]
    argv += ["--port", str(port), "--prometheus-host", "127.0.0.1", "--prometheus-port", str(prometheus)]
    argv += ["--policy", policy, "--api-key", key, "--worker-startup-check-interval", "1", "--worker-urls", *urls]
    child = Child.start("router", argv, env=os.environ, log=log)
    asking = HttpEngine(f"http://127.0.0.1:{port}", key=key)
    try:
        async with asyncio.timeout(60):
            known: list[str] = []
            while len(known) < len(urls):
                await asyncio.sleep(0.1)
                assert child.returncode is None, log.read_text()
                with contextlib.suppress(EngineError):
                    known = await asking.workers()
        yield asking.url, child
    finally:
        await asking.close()
        await child.stop()
