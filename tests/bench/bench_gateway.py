"""What the gateway adds to a request: the median over HTTP against the same scripted engine called directly.

Run: python tests/bench/bench_gateway.py [requests]
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from enginefakes import ScriptedEngine, say
from gatewaykit import Gateway, serving

from saocli.engine.base import GenerateRequest
from saocli.types import Sampling

ANSWER = "The answer is 42. " * 4


async def timed(count: int, call: Callable[[], Awaitable[object]]) -> list[float]:
    """Milliseconds of each of `count` calls, one after another."""
    for _ in range(20):
        await call()
    taken = []
    for _ in range(count):
        start = time.perf_counter()
        await call()
        taken.append((time.perf_counter() - start) * 1000)
    return taken


def show(name: str, taken: list[float]) -> None:
    p50, p99 = statistics.median(taken), statistics.quantiles(taken, n=100)[98]
    print(f"{name:<34} p50 {p50:7.2f} ms   p99 {p99:7.2f} ms")


async def direct(engine: ScriptedEngine) -> None:
    """The engine alone."""
    async for _ in engine.generate(GenerateRequest(rid="x", prompt_ids=(1,) * 40, sampling=Sampling())):
        pass


async def measure(gateway: Gateway, engine: ScriptedEngine, count: int) -> None:
    """Each route in turn, then a burst."""
    show("engine called directly", await timed(count, lambda: direct(engine)))
    show("GET /healthz (the server alone)", await timed(count, lambda: gateway.http.get("/healthz")))
    show("chat, recorded", await timed(count, gateway.chat))
    show(f"chat, streamed in {len(ANSWER)} events", await timed(count // 5, lambda: gateway.chat(stream=True)))

    receipts = iter([await gateway.receipt() for _ in range(count + 20)])
    show("report, flushed to disk", await timed(count, lambda: gateway.report(next(receipts))))
    show("releases", await timed(count, lambda: gateway.http.get("/reef/scenarios/s/releases")))
    show("status", await timed(count, lambda: gateway.http.get("/reef/status")))

    start = time.perf_counter()
    await asyncio.gather(*(gateway.chat() for _ in range(count)))
    print(f"{'chat, all at once':<34} {count / (time.perf_counter() - start):7.0f} requests/s")


async def main(count: int) -> None:
    engine = ScriptedEngine(lambda _: say(ANSWER))
    with tempfile.TemporaryDirectory() as folder:
        async with serving(Path(folder), engine) as gateway:
            await measure(gateway, engine, count)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 500))
