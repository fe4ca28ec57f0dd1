"""Draining takes what was accepted before it, also what was accepted while the queue was being looked through."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

from recoverykit import Run
from storekit import exchange, report

from saocli.queue import SampleQueue
from saocli.store.entries import QueuedReport
from saocli.store.records import Records


class SlowRecords(Records):
    """Hands over what it read only once it may, as a busy disk does."""

    def __init__(self, records: Records) -> None:
        super().__init__(records._db)
        self.read, self.may_go_on = threading.Event(), threading.Event()

    def queued(self, limit: int | None = None, *, after: int = 0) -> list[QueuedReport]:
        found = super().queued(limit, after=after)
        self.read.set()
        assert self.may_go_on.wait(10)
        return found


async def test_a_report_accepted_during_the_last_look_is_taken(tmp_path: Path) -> None:
    run = Run(tmp_path / "run")
    await run.begin()
    records = SlowRecords(run.records)
    queue = SampleQueue(records, run.releases, scenario="s", batch_size=1, max_staleness=0, on_drop=lambda: None)
    taking = asyncio.create_task(queue.take(1))
    assert await asyncio.to_thread(records.read.wait, 10)
    records.add_exchange(exchange("late"))
    records.accept_report(report("p-late", "late"), fingerprint="f", trains=True, reason=None)
    queue.wake()
    queue.drain()
    records.may_go_on.set()
    taken = await asyncio.wait_for(taking, 10)
    assert taken is not None
    assert taken.report_ids == ["p-late"]
    assert await asyncio.wait_for(queue.take(2), 10) is None
    run.close()
