"""Graded rollouts waiting to be trained: the accepted reports on disk, judged when their step starts."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable

from saocli.processors.judge import Rejection, judge
from saocli.processors.staleness import judge_staleness
from saocli.store.entries import QueuedReport
from saocli.store.records import Records
from saocli.store.releases import Releases
from saocli.types import Batch, Sample, Taken

Fresh = tuple[QueuedReport, Sample, tuple[int, ...]]  # what was reported, its sample, the lag of each version


class SampleQueue:
    """The conductor's source: takes a full batch of fresh samples in the order their reports were accepted."""

    def __init__(
        self,
        records: Records,
        releases: Releases,
        *,
        scenario: str,
        batch_size: int,
        max_staleness: int,
        on_drop: Callable[[], None],
    ) -> None:
        self._records = records
        self._releases = releases
        self._scenario = scenario
        self._batch_size = batch_size
        self._max_staleness = max_staleness
        self._on_drop = on_drop
        self._arrived = asyncio.Event()
        self._draining = False
        self._dropped: Counter[str] = Counter()

    def wake(self) -> None:
        """A report was accepted."""
        self._arrived.set()

    def drain(self) -> None:
        """Train what makes full batches, then end."""
        self._draining = True
        self._arrived.set()

    async def take(self, step: int) -> Taken | None:
        """Wait for `batch_size` trainable rollouts and lease them for `step`; None once drained."""
        while True:
            self._arrived.clear()
            before = self._dropped.total()
            taken = await asyncio.to_thread(self._try_take, step)
            if self._dropped.total() != before:
                self._on_drop()
            if taken is not None or self._draining:
                return taken
            await self._arrived.wait()

    def _try_take(self, step: int) -> Taken | None:
        """Judge the oldest `batch_size` reports; a drop makes room for the next in line."""
        head = self._releases.head(self._scenario)
        serving = self._releases.position(head.weight_version) if head else None
        while len(entries := self._records.queued(self._batch_size)) == self._batch_size or (
            self._draining and entries
        ):
            fresh: list[Fresh] = []
            for entry in entries:
                judged = self._judge(entry, serving)
                if isinstance(judged, Rejection):
                    self._records.drop(entry.report.id, judged.reason)
                    self._dropped[judged.reason] += 1
                else:
                    fresh.append(judged)
            if len(fresh) == self._batch_size:
                return self._lease(step, fresh)
            if len(fresh) == len(entries):
                break
        return None

    def _judge(self, entry: QueuedReport, serving: tuple[int, int] | None) -> Fresh | Rejection:
        sample = judge(entry.report, entry.exchanges, trained_scenario=self._scenario)
        if isinstance(sample, Rejection):
            return sample
        positions = [self._releases.position(version) for version in sample.versions]
        lags = judge_staleness(positions, serving, self._max_staleness)
        return lags if isinstance(lags, Rejection) else (entry, sample, lags)

    def _lease(self, step: int, fresh: list[Fresh]) -> Taken:
        report_ids = [entry.report.id for entry, _, _ in fresh]
        self._records.lease(step, report_ids)
        now = time.time()
        dropped, self._dropped = dict(self._dropped), Counter()
        return Taken(
            batch=Batch(step=step, samples=tuple(sample for _, sample, _ in fresh)),
            report_ids=report_ids,
            lags=[lags for _, _, lags in fresh],
            queue_ages_s=[max(0.0, now - sample.reported_at) for _, sample, _ in fresh],
            dropped=dropped,
        )
