"""Graded rollouts waiting to be trained: the accepted reports on disk, judged when their step starts."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from saocli.processors.judge import Rejection, judge
from saocli.processors.reasons import Reason
from saocli.processors.staleness import Position, judge_staleness
from saocli.store.entries import QueuedReport, State
from saocli.store.records import Records
from saocli.store.releases import Releases
from saocli.types import DROPPED, Batch, Sample, Taken


@dataclass(frozen=True, slots=True)
class Waiting:
    """A queued report and the sample that it makes."""

    report_id: str
    sample: Sample


Fresh = tuple[Waiting, tuple[int, ...]]  # with the lag of each of its versions


class SampleQueue:
    """The conductor's source: takes a full batch of fresh samples in the order their reports were accepted.

    With `group_size` G above 1 a batch is made of whole groups, each G rollouts of one prompt, in the order in which
    the groups became complete. With a `history` of W above 0, each sample carries the last W scores of its prompt.
    """

    def __init__(
        self,
        records: Records,
        releases: Releases,
        *,
        scenario: str,
        batch_size: int,
        max_staleness: int,
        on_drop: Callable[[], None],
        group_size: int = 1,
        history: int = 0,
    ) -> None:
        self._records = records
        self._releases = releases
        self._scenario = scenario
        self._batch_size = batch_size
        self._group_size = group_size
        self._max_staleness = max_staleness
        self._history = history
        self._on_drop = on_drop
        self._arrived = asyncio.Event()
        self._draining = asyncio.Event()
        self._paused = False
        # A take whose caller gave up may still be in its thread when the next one begins.
        self._taking = threading.Lock()
        self._dropped = self._uncounted_drops()
        # What the queue on disk holds, in order of acceptance, as far as it was read.
        self._waiting: dict[str, Waiting] = {}
        self._read_to = 0

    def wake(self) -> None:
        """A report was accepted."""
        self._arrived.set()

    def drain(self) -> None:
        """Train what makes full batches, then end; the rest stays queued on disk."""
        self._draining.set()
        self._arrived.set()

    def pause(self) -> None:
        """Give out no further batch until `go_on`: whoever waits for one gets None."""
        self._paused = True
        self._arrived.set()

    def go_on(self) -> None:
        """Undo `pause`."""
        self._paused = False

    async def drained(self) -> None:
        """Return once `drain` was called."""
        await self._draining.wait()

    async def take(self, step: int) -> Taken | None:
        """Wait for a batch of trainable rollouts and lease them for `step`; None once drained or paused.

        A step that was begun and not committed gets the batch that it had, in the same order, whatever waits besides.
        """
        while True:
            self._arrived.clear()
            before = self._dropped.total()
            # As it was before the look: what was accepted meanwhile may make a batch yet.
            draining = self._draining.is_set()
            taken = await asyncio.to_thread(self._try_take, step)
            if self._dropped.total() != before:
                self._on_drop()
            if taken is not None or self._paused or draining:
                return taken
            await self._arrived.wait()

    def batch(self, step: int) -> Batch:
        """The batch that `step` has trained, as it was."""
        return Batch(step=step, samples=tuple(self._with_history(step, self._samples(self._records.batch(step)))))

    def _uncounted_drops(self) -> Counter[str]:
        """What was dropped, and no committed step has counted: its own process or its trainer was killed."""
        counted: Counter[str] = Counter()
        for release in self._releases.list(self._scenario):
            for name, count in release.metrics.items():
                if name.startswith(DROPPED):
                    counted[name.removeprefix(DROPPED)] += int(count or 0)
        tally = self._records.tally()
        dropped = {str(reason): count for (state, reason), count in tally.items() if state == State.DROPPED}
        return Counter(dropped) - counted

    def _try_take(self, step: int) -> Taken | None:
        with self._taking:
            if held := self._records.batch(step):
                return self._again(step, held)
            return None if self._paused else self._take_new(step)

    def _again(self, step: int, held: Sequence[QueuedReport]) -> Taken:
        """The batch of a step that is made again; it was judged when the step began, against the same weights."""
        self._dropped = self._uncounted_drops()
        ages = self._ages(max_staleness=step)
        samples = self._samples(held)
        lags = [lag for sample in samples if isinstance(lag := ages.of(sample), tuple)]
        assert len(lags) == len(samples), "the head is the one that the step began on"
        return self._taken(step, [entry.report.id for entry in held], samples, lags)

    def _samples(self, entries: Sequence[QueuedReport]) -> list[Sample]:
        """What these reports trained or are about to train."""
        samples = []
        for entry in entries:
            sample = judge(entry.report, entry.exchanges, trained_scenario=self._scenario)
            assert isinstance(sample, Sample), "it was judged before it was leased"
            samples.append(sample)
        return samples

    def _ages(self, *, max_staleness: int) -> _Ages:
        head = self._releases.head(self._scenario)
        return _Ages(self._releases, head.weight_version if head else None, max_staleness)

    def _take_new(self, step: int) -> Taken | None:
        """Judge the first groups that make a batch; a drop makes room for the next in line."""
        self._read()
        ages = self._ages(max_staleness=self._max_staleness)
        while chosen := self._first_groups():
            fresh = self._without_stale(chosen, ages)
            if len(fresh) == len(chosen):
                return self._lease(step, fresh)
        if self._draining.is_set():
            self._without_stale(list(self._waiting.values()), ages)
        return None

    def _read(self) -> None:
        """What was accepted since the last look."""
        for entry in self._records.queued(after=self._read_to):
            self._read_to = entry.seq
            sample = judge(entry.report, entry.exchanges, trained_scenario=self._scenario)
            if isinstance(sample, Rejection):
                self._drop(entry.report.id, sample.reason)
            else:
                self._waiting[entry.report.id] = Waiting(entry.report.id, sample)

    def _first_groups(self) -> list[Waiting]:
        """The groups that were complete first, as many as make a batch; [] when there are fewer."""
        chosen: list[Waiting] = []
        groups: dict[str, list[Waiting]] = {}
        for waiting in self._waiting.values():
            group = groups.setdefault(waiting.sample.group, [])
            group.append(waiting)
            if len(group) == self._group_size:
                chosen += groups.pop(waiting.sample.group)
            if len(chosen) == self._batch_size:
                return chosen
        return []

    def _without_stale(self, candidates: Sequence[Waiting], ages: _Ages) -> list[Fresh]:
        """Those that may still train; the others are dropped."""
        fresh: list[Fresh] = []
        for waiting in candidates:
            lags = ages.of(waiting.sample)
            if isinstance(lags, Rejection):
                del self._waiting[waiting.report_id]
                self._drop(waiting.report_id, lags.reason)
            else:
                fresh.append((waiting, lags))
        return fresh

    def _drop(self, report_id: str, reason: Reason) -> None:
        self._records.drop(report_id, reason)
        self._dropped[reason] += 1

    def _lease(self, step: int, fresh: Sequence[Fresh]) -> Taken:
        report_ids = [waiting.report_id for waiting, _ in fresh]
        self._records.lease(step, report_ids)
        for report_id in report_ids:
            del self._waiting[report_id]
        return self._taken(step, report_ids, [waiting.sample for waiting, _ in fresh], [lags for _, lags in fresh])

    def _taken(
        self, step: int, report_ids: Sequence[str], samples: Sequence[Sample], lags: Sequence[tuple[int, ...]]
    ) -> Taken:
        now = time.time()
        dropped, self._dropped = dict(self._dropped), Counter()
        return Taken(
            batch=Batch(step=step, samples=tuple(self._with_history(step, samples))),
            report_ids=report_ids,
            lags=lags,
            queue_ages_s=[max(0.0, now - sample.reported_at) for sample in samples],
            dropped=dropped,
        )

    def _with_history(self, step: int, samples: Sequence[Sample]) -> Sequence[Sample]:
        if self._history == 0:
            return samples
        histories = self._records.histories(step, [sample.group for sample in samples], window=self._history)
        return [replace(sample, history=scores) for sample, scores in zip(samples, histories, strict=True)]


class _Ages:
    """Lags against one serving version; each version is looked up once."""

    def __init__(self, releases: Releases, serving: str | None, max_staleness: int) -> None:
        self._releases = releases
        self._known: dict[str, Position | None] = {}
        self._serving = None if serving is None else self._position(serving)
        self._max_staleness = max_staleness

    def of(self, sample: Sample) -> tuple[int, ...] | Rejection:
        """As `judge_staleness` answers."""
        return judge_staleness([self._position(v) for v in sample.versions], self._serving, self._max_staleness)

    def _position(self, version: str) -> Position | None:
        if version not in self._known:
            self._known[version] = self._releases.position(version)
        return self._known[version]
