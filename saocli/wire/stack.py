"""A run from its first process to its last."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass

from saocli.config.run import RunConfig
from saocli.store.run import RunDirectory
from saocli.supervise import call_when, first_failure_or
from saocli.wire.service import Service
from saocli.wire.training import Wrap
from saocli.wire.view import View


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """How a run ended; of a driven one, its result.json."""

    head: str  # release id
    trained: int  # rollouts
    queued: int  # reports on disk that no step took
    dropped: Mapping[str, int]  # reports that did not train, by reason
    start_s: float  # until the service was healthy
    play_s: float  # from the first attempt until everything was trained, evaluations not counted; 0 if not driven
    eval_s: float
    base_digest: str  # of the weights it started from


async def run(
    config: RunConfig,
    directory: RunDirectory,
    view: View,
    *,
    listener: socket.socket,
    drive: bool,
    last_step: int | None,
    stop: asyncio.Event,
    wrap: Wrap = lambda parts: parts,
) -> Outcome:
    """Start everything; train until the tasks are trained, `last_step` is committed or `stop` is set; end everything.

    A directory that has a chain of releases is gone on with. `wrap` may put something between the conductor's loop and
    its parts. Raises what failed, after every process it started is gone.
    """
    began = time.monotonic()
    async with AsyncExitStack() as started:
        service = Service(config, directory, view, started, wrap=wrap)
        await service.start(listener)
        start_s = time.monotonic() - began
        conductor = asyncio.create_task(service.conduct(last_step))
        driving = asyncio.create_task(service.drive(conductor, stop)) if drive else None
        needed = [conductor, driving] if driving else [conductor]
        others = [
            asyncio.create_task(service.engines.given_up()),
            asyncio.create_task(call_when(stop, service.queue.drain)),
        ]
        if view.live:
            others.append(asyncio.create_task(service.show_counts()))
        try:
            await first_failure_or(needed, others)
        finally:
            for task in (*needed, *others):
                task.cancel()
            await asyncio.gather(*needed, *others, return_exceptions=True)
        await service.save()
        played = driving.result() if driving else None
        counts = service.records.counts()
        outcome = Outcome(
            head=service.chain.head().release_id,
            trained=counts.trained,
            queued=counts.queued + counts.leased,
            dropped=service.records.drops(),
            start_s=start_s,
            play_s=played.play_s if played else 0.0,
            eval_s=played.eval_s if played else 0.0,
            base_digest=service.base.digest,
        )
    if played:
        directory.write_result(asdict(outcome))
    return outcome
