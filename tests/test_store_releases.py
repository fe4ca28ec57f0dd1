"""The version chain: one head, no gap, each report trained exactly once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from gatewaykit import base_release, release
from storekit import exchange, report

from saocli.errors import StoreError
from saocli.store.database import Database
from saocli.store.entries import State
from saocli.store.records import Records
from saocli.store.releases import Releases
from saocli.types import Operation


class Store(NamedTuple):
    records: Records
    releases: Releases


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    database = Database(tmp_path / "records.db")
    made = Store(Records(database), Releases(database))
    made.records.ensure_scenario("s", at=0.0)
    for number in (1, 2):
        made.records.add_exchange(exchange(f"r{number}"))
        made.records.accept_report(report(f"p{number}", f"r{number}"), fingerprint="f", trains=True, reason=None)
    yield made
    database.close()


def test_a_commit_moves_the_head_and_trains_its_reports(store: Store) -> None:
    assert store.releases.head("s") is None
    assert store.releases.scenario() is None
    store.releases.commit(base_release(), report_ids=())
    first = release(1, parent="s@0", metrics={"pg_loss": 0.5, "ev": None}, receipts=("r1",), checkpoint="releases/1")
    store.records.lease(1, ["p1"])
    store.releases.commit(first, report_ids=["p1"])
    assert store.releases.head("s") == first
    assert [entry.current for entry in store.releases.list("s")] == [True, False]
    assert [entry.step for entry in store.releases.list("s")] == [1, 0]
    standing = store.records.receipt_state("r1")
    assert standing is not None
    assert (standing.state, standing.release_id, standing.step) == (State.TRAINED, "s@1", 1)
    assert store.records.counts().trained == 1
    assert store.releases.scenario() == "s"


def test_a_report_that_was_trained_or_dropped_cannot_be_committed_again(store: Store) -> None:
    store.releases.commit(base_release(), report_ids=())
    store.releases.commit(release(1, parent="s@0"), report_ids=["p1"])
    with pytest.raises(StoreError, match="trains 2 reports, but only 1"):
        store.releases.commit(release(2, parent="s@1"), report_ids=["p1", "p2"])
    head = store.releases.head("s")
    assert head is not None
    assert head.release_id == "s@1"
    assert [entry.report.id for entry in store.records.queued()] == ["p2"]


def test_the_chain_has_no_gap(store: Store) -> None:
    store.releases.commit(base_release(), report_ids=())
    with pytest.raises(StoreError, match="has parent s@7, but the head is s@0"):
        store.releases.commit(release(8, parent="s@7"), report_ids=())
    with pytest.raises(StoreError):
        store.releases.commit(base_release(), report_ids=())
    assert len(store.releases.list("s")) == 1


def test_a_rollback_starts_a_lineage(store: Store) -> None:
    store.releases.commit(base_release(), report_ids=())
    store.releases.commit(release(1, parent="s@0"), report_ids=())
    store.releases.commit(release(2, Operation.ROLLBACK, parent="s@0"), report_ids=())
    store.releases.commit(release(3, parent="s@2"), report_ids=())
    positions = [store.releases.position(f"s@{step}") for step in range(4)]
    assert positions == [(0, 0), (0, 1), (1, 2), (1, 3)]
    assert store.releases.position("s@9") is None


def test_a_version_that_several_releases_serve_is_where_the_newest_is(store: Store) -> None:
    store.releases.commit(base_release(), report_ids=())
    store.releases.commit(release(1, Operation.NOOP, parent="s@0", weight_version="s@0"), report_ids=())
    assert store.releases.position("s@0") == (0, 1)


def test_a_checkpoint_can_be_retired(store: Store) -> None:
    store.releases.commit(base_release(), report_ids=())
    store.releases.set_checkpoint("s@0", "releases/000000/state")
    kept = store.releases.get("s@0")
    assert kept is not None
    assert kept.checkpoint == "releases/000000/state"
    store.releases.set_checkpoint("s@0", None)
    assert store.releases.get("s@0") == base_release()
    assert store.releases.get("nope") is None
