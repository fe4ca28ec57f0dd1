"""Receipts and reports on disk: nothing lost, nothing twice."""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from storekit import exchange, report

from saocli.errors import StoreError
from saocli.store.blobs import pack_ids, pack_logprobs, unpack_ids, unpack_logprobs
from saocli.store.database import Database
from saocli.store.entries import Accepted, Conflict, ReceiptEntry, ReportEntry, State
from saocli.store.records import Records
from saocli.types import Sampling, Span


@pytest.fixture
def records(tmp_path: Path) -> Iterator[Records]:
    database = Database(tmp_path / "records.db")
    store = Records(database)
    store.ensure_scenario("s", at=0.0)
    yield store
    database.close()


def accept(records: Records, report_id: str, *receipts: str, **options: object) -> Accepted | Conflict:
    judged = {"fingerprint": "f", "trains": True, "reason": None} | options
    return records.accept_report(report(report_id, *receipts), **judged)  # type: ignore[arg-type]


def state_of(records: Records, receipt: str) -> tuple[State, str | None, str | None]:
    standing = records.receipt_state(receipt)
    assert standing is not None
    return standing.state, standing.reason, standing.release_id


def test_an_exchange_comes_back_as_it_went_in(records: Records) -> None:
    given_one = exchange(
        session="c1",
        logprobs=(-0.1, None, -12.75),
        spans=(Span(version="s@0", start=0, end=1), Span(version="s@1", start=1, end=3)),
        sampling=Sampling(temperature=0.7, stop=("a", "b"), seed=-5),
        tags={"task": "imo-4"},
        text="a \ufffd ✓",
        trainable=False,
        why_not="aborted",
    )
    records.add_exchange(given_one)
    assert records.get_exchange("r1") == given_one
    assert records.get_exchange("r2") is None


@settings(deadline=None)
@given(st.lists(st.integers(-(2**31), 2**31 - 1)), st.lists(st.none() | st.floats(max_value=0, allow_nan=False)))
def test_columns_keep_ids_and_every_bit_of_a_logprob(ids: list[int], logprobs: list[float | None]) -> None:
    assert unpack_ids(pack_ids(ids)) == tuple(ids)
    expected = tuple(None if value is None or math.isinf(value) else value for value in logprobs)
    assert unpack_logprobs(pack_logprobs(logprobs)) == expected


def test_a_retry_gets_the_stored_answer_and_other_content_a_conflict(records: Records) -> None:
    records.add_exchange(exchange())
    first = accept(records, "p1", "r1")
    assert first == Accepted(report_id="p1", scenario="s", trains=True, reason=None)
    assert accept(records, "p1", "r1") == first
    records.drop("p1", "stale")
    assert accept(records, "p1", "r1") == first, "a later drop is not part of the answer"
    assert accept(records, "p1", "r1", fingerprint="other") == Conflict(report_id="p1")
    assert accept(records, "r1", "r1") == Conflict(report_id="r1"), "an id names one record, receipts included"
    assert records.counts().dropped == 1


def test_a_receipt_trains_at_most_once(records: Records) -> None:
    records.add_exchange(exchange())
    assert accept(records, "p0", "r1", trains=False, reason="ineligible") == Accepted(
        report_id="p0", scenario="s", trains=False, reason="ineligible"
    )
    assert state_of(records, "r1") == (State.RECORDED, "ineligible", None)
    assert isinstance(accept(records, "p1", "r1"), Accepted)
    assert accept(records, "p2", "r1") == Accepted(
        report_id="p2", scenario="s", trains=False, reason="already_reported"
    )
    assert state_of(records, "r1") == (State.QUEUED, None, None)
    assert [entry.report.id for entry in records.queued()] == ["p1"]
    assert records.drops() == {"already_reported": 1, "ineligible": 1}


def test_fifty_threads_make_one_sample(records: Records) -> None:
    records.add_exchange(exchange())
    start = threading.Barrier(50)

    def post(number: int) -> Accepted | Conflict:
        start.wait()
        return accept(records, f"p{number}", "r1")

    with ThreadPoolExecutor(50) as pool:
        answers = list(pool.map(post, range(50)))
    assert sum(isinstance(answer, Accepted) and answer.trains for answer in answers) == 1
    assert records.counts().queued == 1
    assert records.counts().recorded == 49


def test_the_queue_keeps_the_order_of_acceptance_and_survives_a_restart(records: Records, tmp_path: Path) -> None:
    for number in (3, 1, 2):
        records.add_exchange(exchange(f"r{number}"))
        accept(records, f"p{number}", f"r{number}")
    records.lease(7, ["p3"])
    assert [entry.report.id for entry in records.queued()] == ["p1", "p2"]
    assert [entry.exchange.receipt for entry in records.queued(limit=1)] == ["r1"]

    again = Records(Database(tmp_path / "records.db"))
    assert [entry.report.id for entry in again.batch(7)] == ["p3"]
    assert [entry.report.id for entry in again.queued()] == ["p1", "p2"]


def test_a_lease_is_all_or_nothing(records: Records) -> None:
    records.add_exchange(exchange())
    accept(records, "p1", "r1")
    with pytest.raises(StoreError, match="asked for 2 queued reports and found 1"):
        records.lease(1, ["p1", "p9"])
    assert records.counts().queued == 1


def test_counts_and_states_follow_a_report(records: Records) -> None:
    for name in ("r1", "r2", "r3"):
        records.add_exchange(exchange(name))
    records.add_exchange(exchange("r4", trainable=False, why_not="client_disconnect"))
    assert records.counts().open == 3
    assert state_of(records, "r4") == (State.OPEN, "client_disconnect", None)
    accept(records, "p1", "r1")
    records.lease(1, ["p1"])
    assert state_of(records, "r1")[0] is State.LEASED
    accept(records, "p2", "r2")
    records.drop("p2", "stale")
    assert state_of(records, "r2") == (State.DROPPED, "stale", None)
    counts = records.counts()
    assert (counts.open, counts.queued, counts.leased, counts.dropped) == (1, 0, 1, 1)
    assert records.receipt_state("r9") is None


def test_pages_show_receipts_and_reports_in_one_order(records: Records) -> None:
    records.ensure_scenario("other", at=1.0)
    records.add_exchange(exchange("r1"))
    records.add_exchange(exchange("r2", scenario="other"))
    accept(records, "p1", "r1")
    accept(records, "p2", trains=False, reason="no_references")
    first = records.page("s", limit=2)
    assert isinstance(first[0], ReceiptEntry)
    assert (first[0].prompt_tokens, first[0].output_tokens, first[0].versions) == (2, 3, ("s@0",))
    assert isinstance(first[1], ReportEntry)
    assert first[1].report.references == ("r1",)
    (last,) = records.page("s", after=first[-1].seq, limit=2)
    assert isinstance(last, ReportEntry)
    assert (last.report.id, last.standing.state) == ("p2", State.RECORDED)


def test_scenarios_are_created_once(records: Records) -> None:
    assert records.ensure_scenario("b", at=2.0)
    assert not records.ensure_scenario("b", at=3.0)
    assert records.scenarios() == ["s", "b"]


def test_an_id_takes_four_bytes_and_must_fit_in_them() -> None:
    with pytest.raises(Exception, match="format requires"):
        pack_ids([2**31])
    assert sys.getsizeof(pack_ids(range(1000))) < 4100
