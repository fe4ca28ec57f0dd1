"""Which generations may start: what the engine can run at once, and what training can still use."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from saocli.gateway.errors import ApiError, busy
from saocli.store.records import Records


@dataclass(frozen=True, kw_only=True, slots=True)
class Room:
    """What one request holds while it runs."""

    generations: int
    rollouts: int  # of them, those that can train


class Admission:
    """Counts what runs and what waits; refuses, with 429 and the numbers, what would be one too many.

    A rollout that can train is *outstanding* from its start until a step took its report: running, then an open
    receipt, then queued or leased. More of them than the window of staleness takes would be sampled for nothing, so
    from `max_outstanding` on (0: no limit) a new one has to wait. A receipt that stays without a report for
    `receipt_ttl_s` counts no longer, and where nothing but new rollouts can bring the next step about, one is always
    let in: nothing waits for ever.

    Used in one event loop.
    """

    def __init__(
        self,
        records: Records,
        *,
        scenario: str,
        max_generations: int,
        max_outstanding: int,
        receipt_ttl_s: float,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._running = 0  # generations, trainable or not
        self._records = records
        self._max_generations = max_generations
        self._max_outstanding = max_outstanding
        self._ttl = receipt_ttl_s
        self._clock = clock
        self._rollouts = 0  # of those running, the ones that can train
        self._open: dict[str, float] = {}  # receipt → since when it counts, oldest first
        self._looked = clock()
        # A bound on the reports that wait: what the store said last, and what was accepted since.
        self._waiting_at_most = 0
        if max_outstanding:
            since = records.open_receipts(scenario, since=self._looked - receipt_ttl_s)
            self._open = {receipt: min(made, self._looked) for receipt, made in since.items()}
            self._waiting_at_most = sum(records.waiting())

    async def enter(self, generations: int, *, trainable: bool) -> Room:
        """Room for these, to be given back by `leave`. Raises ApiError (429) when there is none."""
        if self._running + generations > self._max_generations:
            raise busy(
                f"{self._running} generations run, of at most {self._max_generations} (gateway.max_generations)",
                "too_many_generations",
            )
        room = Room(generations=generations, rollouts=generations if trainable and self._max_outstanding else 0)
        self._running += room.generations
        self._rollouts += room.rollouts
        entered = False
        try:
            if room.rollouts:
                await self._check(room.rollouts)
            entered = True
        finally:
            if not entered:
                self.leave(room)
        return room

    @property
    def running(self) -> int:
        """Generations that run now, trainable or not."""
        return self._running

    def leave(self, room: Room) -> None:
        """These have ended."""
        self._running -= room.generations
        self._rollouts -= room.rollouts

    def opened(self, receipt: str, created_at: float) -> None:
        """A trainable generation of the trained scenario was recorded."""
        if self._max_outstanding:
            self._open[receipt] = created_at

    def reported(self, receipts: Iterable[str], *, trains: bool) -> None:
        """A report was accepted for these."""
        for receipt in receipts:
            self._open.pop(receipt, None)
        self._waiting_at_most += trains

    async def _check(self, new: int) -> None:
        """`new` are counted among the running already."""
        self._forget_expired()
        if self._rollouts + len(self._open) + self._waiting_at_most <= self._max_outstanding:
            return
        queued, leased = await asyncio.to_thread(self._records.waiting)
        self._waiting_at_most = queued + leased
        running, opened = self._rollouts - new, len(self._open)
        if running + opened + queued + leased + new <= self._max_outstanding:
            return
        if not (running or opened or leased):
            return  # the queue alone makes no batch, or nobody takes any more: only new rollouts could change that
        raise _outstanding(running, opened, queued, leased, self._max_outstanding)

    def _forget_expired(self) -> None:
        now = self._clock()
        if now < self._looked:
            # It was set back: what is open would count until it has come as far again.
            self._open = dict.fromkeys(self._open, now)
        self._looked = now
        oldest = now - self._ttl
        for receipt, created_at in list(self._open.items()):
            if created_at >= oldest:
                break
            del self._open[receipt]


def _outstanding(running: int, opened: int, queued: int, leased: int, limit: int) -> ApiError:
    return busy(
        f"{running + opened + queued + leased} rollouts are outstanding, of at most {limit} "
        f"(gateway.max_outstanding): {running} running, {opened} without a report, {queued} queued, {leased} in a "
        "step; report the open ones, or wait for a step",
        "too_many_outstanding",
    )
