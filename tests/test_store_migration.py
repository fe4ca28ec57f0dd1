"""Files of an older schema: brought up to date with all that is in them, or read as they are."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest
import schema2
from gatewaykit import base_release, release
from storekit import exchange, report

from saocli.errors import StoreError
from saocli.store.database import Database
from saocli.store.records import Records
from saocli.store.releases import Releases
from saocli.store.rows import exchange_columns, insert, release_columns, report_columns
from saocli.store.schema import VERSION
from saocli.types import Release


def old_file(path: Path) -> None:
    """A run of version 2: p1 and p2 trained in the order p2, p1; p3 leased, p4 queued."""
    db = sqlite3.connect(path, isolation_level=None)
    for statement in schema2.SCHEMA:
        db.execute(statement)
    db.execute(f"PRAGMA user_version = {schema2.VERSION}")
    db.execute("INSERT INTO scenarios VALUES ('s', 0)")
    states = {1: "trained", 2: "trained", 3: "leased", 4: "queued"}
    for number in states:
        seq = insert(db, "records", {"id": f"r{number}", "scenario": "s", "request_type": "inference"})
        taken = {"seq": seq, "reported": 1, "claim": f"p{number}"}
        insert(db, "exchanges", taken | exchange_columns(exchange(f"r{number}")))
    for number, state in states.items():
        seq = insert(db, "records", {"id": f"p{number}", "scenario": "s", "request_type": "report"})
        standing = {
            "fingerprint": "f",
            "trains": 1,
            "state": state,
            "step": {"trained": 1, "leased": 2}.get(state),
            "release_id": "s@1" if state == "trained" else None,
        }
        insert(db, "reports", {"seq": seq} | report_columns(report(f"p{number}", f"r{number}")) | standing)
        insert(db, "report_references", {"report": f"p{number}", "position": 0, "receipt": f"r{number}"})
    for made in chain():
        insert(db, "releases", release_columns(made) | {"current": made.current, "lineage": 0})
    db.close()


def chain() -> tuple[Release, Release]:
    return replace(base_release(), current=False), release(1, parent="s@0", receipts=("r2", "r1"))


def test_a_file_of_version_2_is_brought_up_to_date(tmp_path: Path) -> None:
    path = tmp_path / "records.db"
    old_file(path)
    database = Database(path)
    records, releases = Records(database), Releases(database)
    assert [entry.report.id for entry in records.batch(1)] == ["p2", "p1"], "the order in which the step took them"
    assert [entry.report.id for entry in records.batch(2)] == ["p3"]
    assert [entry.report.id for entry in records.queued()] == ["p4"]
    assert releases.list("s") == list(reversed(chain()))
    assert records.get_exchange("r1") == exchange("r1")
    records.lease(3, ["p4"])
    database.close()
    again = Database(path)
    assert [entry.report.id for entry in Records(again).batch(3)] == ["p4"]
    again.close()
    with sqlite3.connect(path) as db:
        assert db.execute("PRAGMA user_version").fetchone()[0] == VERSION


def test_an_old_file_can_be_read_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "records.db"
    old_file(path)
    before = path.read_bytes()
    database = Database(path, readonly=True)
    assert [entry.report.id for entry in Records(database).queued()] == ["p4"]
    assert len(Records(database).page("s")) == 8
    assert Releases(database).list("s") == list(reversed(chain()))
    database.close()
    assert path.read_bytes() == before


def test_a_migration_happens_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "records.db"
    old_file(path)
    with sqlite3.connect(path) as db:
        db.execute("UPDATE releases SET receipts = 'no JSON' WHERE step = 1")
    with pytest.raises(StoreError, match="malformed JSON"):
        Database(path)
    with sqlite3.connect(path) as db:
        assert db.execute("PRAGMA user_version").fetchone()[0] == schema2.VERSION
        assert "position" not in [row[1] for row in db.execute("PRAGMA table_info(reports)")]


@pytest.mark.parametrize("readonly", [True, False])
def test_a_newer_file_is_refused(tmp_path: Path, readonly: bool) -> None:
    path = tmp_path / "records.db"
    Database(path).close()
    with sqlite3.connect(path) as db:
        db.execute(f"PRAGMA user_version = {VERSION + 1}")
    with pytest.raises(StoreError, match=f"schema version {VERSION + 1}, this program reads {VERSION}"):
        Database(path, readonly=readonly)


def test_a_damaged_page_is_found_before_the_run_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "records.db"
    database = Database(path)
    records = Records(database)
    records.ensure_scenario("s", at=0.0)
    for number in range(200):
        records.add_exchange(exchange(f"r{number}", text="y" * 500))
    database.check()
    database.close()
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2)
        file.write(b"\xff" * 4096)
    database = Database(path)
    with pytest.raises(StoreError, match=r"damaged|malformed") as refused:
        database.check()
    assert refused.value.fix is not None
    assert "copy" in refused.value.fix
    database.close()
