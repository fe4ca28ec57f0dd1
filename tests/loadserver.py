"""A gateway in a process of its own, with a scripted engine and steps that take as long as they are told to.

Run: python tests/loadserver.py FOLDER STEP_S. Prints its URL, then serves until its stdin ends.
"""

from __future__ import annotations

import asyncio
import socket
import sys
import time
from pathlib import Path

from enginefakes import ScriptedEngine, say
from gatewaykit import SCENARIO, make_deps, release

from saocli.gateway.app import make_app
from saocli.gateway.connection import Bounds
from saocli.gateway.deps import GatewayDeps
from saocli.gateway.server import serve
from saocli.queue import SampleQueue
from saocli.store.database import Database

BATCH = 8


async def train(deps: GatewayDeps, queue: SampleQueue, step_s: float) -> None:
    """The conductor's part: take, be busy, commit; until the queue is paused."""
    step = 1
    while (taken := await queue.take(step)) is not None:
        await asyncio.to_thread(time.sleep, step_s)
        receipts = tuple(sample.receipt for sample in taken.batch.samples)
        made = release(step, parent=f"{SCENARIO}@{step - 1}", weight_version=f"{SCENARIO}@0", receipts=receipts)
        await asyncio.to_thread(deps.releases.commit, made, report_ids=taken.report_ids)
        deps.changes.notify()
        step += 1


async def main(folder: Path, step_s: float) -> None:
    engine = ScriptedEngine(lambda _: say("The answer is 42. ", delay_s=0.05))
    deps = make_deps(Database(folder / "records.db"), engine, batch_size=BATCH, max_staleness=1000)
    queue = SampleQueue(
        deps.records,
        deps.releases,
        scenario=SCENARIO,
        batch_size=BATCH,
        max_staleness=1000,
        on_drop=deps.changes.notify,
    )
    deps.on_report_accepted = queue.wake
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", 0))
    end = await serve(make_app(deps), listener, Bounds())
    conductor = asyncio.create_task(train(deps, queue, step_s))
    print(f"http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await end()
    queue.pause()
    await conductor


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), float(sys.argv[2])))
