"""The database file: durable, shared, and honest about its damage."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest
from storekit import exchange, report

from saocli.errors import StoreError
from saocli.store.database import Database
from saocli.store.records import Records

WRITER = """
import sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from storekit import exchange, report
from saocli.store.database import Database
from saocli.store.records import Records

records = Records(Database(Path({db!r})))
records.ensure_scenario("s", at=0.0)
for number in range(10_000):
    records.add_exchange(exchange(f"r{{number}}"))
    records.accept_report(report(f"p{{number}}", f"r{{number}}"), fingerprint="f", trains=True, reason=None)
    print(number, flush=True)
"""


def test_a_killed_writer_loses_nothing_it_acknowledged(tmp_path: Path) -> None:
    db = tmp_path / "records.db"
    program = WRITER.format(tests=str(Path(__file__).parent), db=str(db))
    writer = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    acknowledged = -1
    while acknowledged < 20:
        acknowledged = int(writer.stdout.readline())
    os.kill(writer.pid, signal.SIGKILL)
    rest = writer.stdout.read().split()
    acknowledged = int(rest[-1]) if rest else acknowledged
    writer.wait()
    queued = Records(Database(db)).queued()
    assert len(queued) - 1 in (acknowledged, acknowledged + 1)
    assert [entry.report.id for entry in queued] == [f"p{number}" for number in range(len(queued))]


def test_reports_are_flushed_and_receipts_are_not(tmp_path: Path) -> None:
    database = Database(tmp_path / "records.db")
    records = Records(database)
    records.ensure_scenario("s", at=0.0)
    full, normal = 2, 1

    def level() -> int:
        assert database._writer is not None
        return int(database._writer.execute("PRAGMA synchronous").fetchone()[0])

    records.add_exchange(exchange())
    assert level() == normal
    records.accept_report(report("p1", "r1"), fingerprint="f", trains=True, reason=None)
    assert level() == full


def test_a_failed_transaction_leaves_nothing(tmp_path: Path) -> None:
    database = Database(tmp_path / "records.db")
    with pytest.raises(RuntimeError), database.write(durable=True) as db:
        db.execute("INSERT INTO scenarios VALUES ('x', 0)")
        raise RuntimeError
    assert Records(database).scenarios() == []
    with pytest.raises(StoreError, match="UNIQUE"), database.write(durable=True) as db:
        db.execute("INSERT INTO scenarios VALUES ('x', 0), ('x', 0)")
    assert Records(database).scenarios() == []
    assert Records(database).ensure_scenario("x", at=0.0)


def test_another_process_reads_while_a_run_writes(tmp_path: Path) -> None:
    writer = Records(Database(tmp_path / "records.db"))
    writer.ensure_scenario("s", at=0.0)
    reader = Records(Database(tmp_path / "records.db", readonly=True))
    writer.ensure_scenario("t", at=1.0)
    assert reader.scenarios() == ["s", "t"]
    with pytest.raises(StoreError, match="reading only"):
        reader.ensure_scenario("u", at=2.0)


@pytest.mark.alone
def test_a_read_does_not_wait_for_a_write(tmp_path: Path) -> None:
    database = Database(tmp_path / "records.db")
    with database.write(durable=True) as db:
        db.execute("INSERT INTO scenarios VALUES ('x', 0)")
        start = time.perf_counter()
        assert Records(database).scenarios() == []
        assert time.perf_counter() - start < 0.1


def test_what_is_no_run_database_is_refused_with_a_fix(tmp_path: Path) -> None:
    (tmp_path / "text.db").write_text("not a database, " * 100)
    with pytest.raises(StoreError, match="not a database") as refused:
        Database(tmp_path / "text.db")
    assert refused.value.fix
    with pytest.raises(StoreError, match="unable to open"):
        Database(tmp_path / "missing.db", readonly=True)
    with pytest.raises(StoreError):
        Database(tmp_path / "text.db" / "records.db")


def test_damage_inside_is_named(tmp_path: Path) -> None:
    path = tmp_path / "records.db"
    database = Database(path)
    records = Records(database)
    records.ensure_scenario("s", at=0.0)
    for number in range(200):
        records.add_exchange(exchange(f"r{number}", text="y" * 500))
    database.close()
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(size // 8)
        file.write(b"\xff" * (size - size // 8))
    with pytest.raises(StoreError, match="malformed") as refused:
        Records(Database(path)).page("s", limit=1000)
    assert refused.value.fix is not None
    assert "copy" in refused.value.fix


def test_another_schema_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "records.db"
    Database(path).close()
    raw = sqlite3.connect(path)
    raw.execute("PRAGMA user_version = 99")
    raw.close()
    with pytest.raises(StoreError, match="schema version 99"):
        Database(path)
