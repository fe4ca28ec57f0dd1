"""The queue makes batches of whole groups, and of single rollouts in the order of their reports."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from gatewaykit import base_release, release
from storekit import exchange, report

from saocli.processors.judge import prompt_group
from saocli.queue import SampleQueue
from saocli.store.database import Database
from saocli.store.entries import QueuedReport, State
from saocli.store.records import TAKEN, TAKEN_OF_PROMPT, Records
from saocli.store.releases import Releases
from saocli.types import Operation, Span, Taken

PROMPTS = {"a": (1, 2), "b": (1, 3), "c": (1, 4)}


class CountingRecords(Records):
    """The real store, which also counts what the queue reads of it."""

    read = 0

    def queued(self, limit: int | None = None, *, after: int = 0) -> list[QueuedReport]:
        entries = super().queued(limit, after=after)
        self.read += len(entries)
        return entries


class Line:
    """A store with its queue; reports are named after their prompt: a1, a2, b1, …"""

    def __init__(self, database: Database) -> None:
        self.records, self.releases = CountingRecords(database), Releases(database)
        self.records.ensure_scenario("s", at=0.0)
        self.releases.commit(base_release(), report_ids=())

    def queue(self, **options: Any) -> SampleQueue:
        defaults: dict[str, Any] = {"scenario": "s", "batch_size": 2, "max_staleness": 0, "on_drop": lambda: None}
        return SampleQueue(self.records, self.releases, **(defaults | options))

    def accept(self, *names: str, version: str = "s@0", score: float = 1.0) -> None:
        for name in names:
            prompt = PROMPTS[name[0]]
            spans = (Span(version=version, start=0, end=3),)
            self.records.add_exchange(exchange(f"r-{name}", prompt_ids=prompt, spans=spans))
            self.records.accept_report(
                report(name, f"r-{name}", score=score),
                fingerprint="f",
                trains=True,
                reason=None,
                group=prompt_group(prompt),
            )

    def commit(self, taken: Taken | None = None, **fields: Any) -> None:
        head = self.releases.head("s")
        assert head is not None
        made = release(head.step + 1, parent=head.release_id, **fields)
        self.releases.commit(made, report_ids=taken.report_ids if taken else ())


@pytest.fixture
def line(tmp_path: Path) -> Iterator[Line]:
    database = Database(tmp_path / "records.db")
    yield Line(database)
    database.close()


def ids(taken: Taken | None) -> list[str] | None:
    return None if taken is None else list(taken.report_ids)


async def drained(queue: SampleQueue, step: int = 1) -> list[str] | None:
    queue.drain()
    return ids(await queue.take(step))


async def test_groups_are_taken_in_the_order_in_which_they_became_complete(line: Line) -> None:
    line.accept("a1", "b1", "c1", "b2", "c2", "a2")
    queue = line.queue(group_size=2)
    order = []
    for step in (1, 2, 3):
        taken = await queue.take(step)
        assert taken is not None
        assert len({sample.group for sample in taken.batch.samples}) == 1
        order.append(ids(taken))
    assert order == [["b1", "b2"], ["c1", "c2"], ["a1", "a2"]]


async def test_a_batch_of_several_groups_waits_for_all_of_them(line: Line) -> None:
    queue = line.queue(group_size=2, batch_size=4)
    line.accept("a1", "a2", "a3", "b1")
    taking = asyncio.create_task(queue.take(1))
    await asyncio.sleep(0.05)
    assert not taking.done(), "five rollouts, but one whole group"
    line.accept("a4", "b2")
    queue.wake()
    assert ids(await asyncio.wait_for(taking, 1)) == ["a1", "a2", "a3", "a4"]
    assert await drained(queue, 2) is None
    assert line.records.counts().queued == 2


async def test_what_came_before_an_incomplete_group_does_not_hold_it_up(line: Line) -> None:
    line.accept("a1", "b1", "c1", "a2")
    assert ids(await line.queue(group_size=2).take(1)) == ["a1", "a2"]


async def test_a_stale_rollout_leaves_its_group_open_for_another_one(line: Line) -> None:
    line.accept("a1")
    line.commit()
    line.accept("a2", version="s@1")
    drops: list[str] = []
    queue = line.queue(group_size=2, on_drop=lambda: drops.append("dropped"))
    taking = asyncio.create_task(queue.take(2))
    await asyncio.sleep(0.05)
    assert not taking.done()
    assert drops == ["dropped"]
    standing = line.records.receipt_state("r-a1")
    assert standing is not None
    assert (standing.state, standing.reason) == (State.DROPPED, "stale")
    line.accept("a3", version="s@1")
    queue.wake()
    taken = await asyncio.wait_for(taking, 1)
    assert taken is not None
    assert (ids(taken), taken.dropped, taken.lags) == (["a2", "a3"], {"stale": 1}, [(0,), (0,)])


async def test_incomplete_groups_stay_on_disk_at_the_end(line: Line, tmp_path: Path) -> None:
    line.accept("a1", "b1", "a2", "a3")
    queue = line.queue(group_size=2)
    assert await drained(queue) == ["a1", "a2"]
    assert await drained(queue, 2) is None
    assert line.records.counts().queued == 2
    again = Line.__new__(Line)
    again.records, again.releases = CountingRecords(Database(tmp_path / "records.db")), line.releases
    again.accept("b2")
    assert ids(await again.queue(group_size=2).take(2)) == ["b1", "b2"]


async def test_every_report_is_read_once(line: Line) -> None:
    queue = line.queue(group_size=2)
    taking = asyncio.create_task(queue.take(1))
    for name in ("a1", "b1", "c1", "b2"):
        line.accept(name)
        queue.wake()
        await asyncio.sleep(0.02)
    assert ids(await asyncio.wait_for(taking, 1)) == ["b1", "b2"]
    assert line.records.read == 4


async def test_single_rollouts_are_taken_as_they_came_and_judged_when_their_step_starts(line: Line) -> None:
    line.accept("a1", "b1")
    line.commit()
    line.accept("c1", "a2", "b2", version="s@1")
    line.accept("c2", version="s@0")
    queue = line.queue()
    taken = await queue.take(2)
    assert taken is not None
    assert (ids(taken), taken.dropped) == (["c1", "a2"], {"stale": 2})
    assert line.records.counts().queued == 2, "the stale c2 is not judged yet"
    line.commit(taken)
    assert await drained(queue, 3) is None
    assert (line.records.counts().queued, line.records.counts().dropped) == (0, 4)


async def test_a_step_that_moved_no_weights_ages_nothing(line: Line) -> None:
    line.accept("a1", "b1")
    line.commit(operation=Operation.NOOP, weight_version="s@0")
    taken = await line.queue().take(2)
    assert taken is not None
    assert taken.lags == [(0,), (0,)]


async def test_history_is_what_earlier_steps_took_of_the_prompt(line: Line) -> None:
    queue = line.queue(batch_size=1, max_staleness=9, history=3)
    histories = []
    for step, (name, score) in enumerate([("a1", 0.1), ("b1", 0.2), ("a2", 0.3), ("a3", 0.4), ("a4", 0.5)], start=1):
        line.accept(name, score=score)
        taken = await queue.take(step)
        assert taken is not None
        histories.append(taken.batch.samples[0].history)
        line.commit(taken)
    # A prompt that was never seen has the scores of all prompts.
    assert histories == [(), (0.1,), (0.1,), (0.1, 0.3), (0.1, 0.3, 0.4)]
    line.accept("c1", "a5")
    taken = await queue.take(6)
    assert taken is not None
    assert taken.batch.samples[0].history == (0.3, 0.4, 0.5)


async def test_rollouts_of_one_batch_do_not_see_each_other_and_dropped_ones_do_not_count(line: Line) -> None:
    queue = line.queue(batch_size=2, history=8)
    line.accept("a1", score=0.9)
    line.commit()
    line.accept("a2", "a3", version="s@1", score=0.5)
    taken = await queue.take(2)
    assert taken is not None
    assert ids(taken) == ["a2", "a3"]
    assert [sample.history for sample in taken.batch.samples] == [(), ()]


async def test_a_step_that_is_made_again_after_a_crash_sees_the_same_history(line: Line, tmp_path: Path) -> None:
    queue = line.queue(batch_size=2, max_staleness=9, history=8)
    line.accept("a1", "b1", score=0.25)
    line.commit(await queue.take(1))
    line.accept("a2", "c1", score=0.75)
    taken = await queue.take(2)
    assert taken is not None
    records = Records(Database(tmp_path / "records.db"))
    again = await SampleQueue(
        records,
        line.releases,
        scenario="s",
        batch_size=2,
        max_staleness=9,
        history=8,
        on_drop=lambda: None,
    ).take(2)
    assert again is not None
    assert again.batch == taken.batch
    assert [sample.history for sample in again.batch.samples] == [(0.25,), (0.25, 0.25)]


async def test_drops_that_a_kill_left_uncounted_are_in_the_next_step_s_metrics(line: Line) -> None:
    line.accept("a1", version="s@8")
    line.accept("b1", "b2", version="s@9")
    assert await drained(line.queue(batch_size=1)) is None  # all of another lineage: dropped, and no step says so
    line.accept("c1")
    taken = await line.queue(batch_size=1).take(1)
    assert taken is not None
    assert taken.dropped == {"lineage": 3}
    line.commit(taken, metrics={"dropped/lineage": 3.0, "pg_loss": None})
    line.accept("c2", version="s@1")
    again = await line.queue(batch_size=1).take(2)
    assert again is not None
    assert again.dropped == {}


@pytest.mark.parametrize("query", [TAKEN, TAKEN_OF_PROMPT])
def test_history_is_looked_up_without_sorting(tmp_path: Path, query: str) -> None:
    database = Database(tmp_path / "records.db")
    with database.read() as db:
        (step,) = db.execute(f"EXPLAIN QUERY PLAN {query}", {"step": 9, "window": 8, "group": "x"}).fetchall()
    assert "SEARCH reports USING INDEX taken_by" in step["detail"]
    database.close()
