"""The version chain: one entry per commit, exactly one of a scenario's entries current."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from saocli.errors import StoreError
from saocli.store.database import Database
from saocli.store.rows import holes, insert, release_columns, to_release
from saocli.types import Operation, Release

FAULT = "this is a fault of sao: nothing was committed; restart the run"


class Releases:
    """The releases of a run."""

    def __init__(self, database: Database) -> None:
        self._db = database

    def scenario(self) -> str | None:
        """The scenario that this run trains: the one that has releases. None before the first commit."""
        with self._db.read() as db:
            row = db.execute("SELECT scenario FROM releases ORDER BY seq LIMIT 1").fetchone()
            return row["scenario"] if row else None

    def head(self, scenario: str) -> Release | None:
        """The current release: what the engine serves. None before the first commit."""
        with self._db.read() as db:
            row = _head(db, scenario)
            return to_release(row) if row else None

    def list(self, scenario: str) -> list[Release]:
        """All of them, newest first."""
        with self._db.read() as db:
            query = "SELECT * FROM releases WHERE scenario = ? ORDER BY seq DESC"
            return [to_release(row) for row in db.execute(query, (scenario,))]

    def tally(self, scenario: str) -> dict[str, int]:
        """How many there are of each operation."""
        with self._db.read() as db:
            query = "SELECT operation, count(*) FROM releases WHERE scenario = ? GROUP BY operation ORDER BY operation"
            return dict(tuple(row) for row in db.execute(query, (scenario,)))

    def get(self, release_id: str) -> Release | None:
        """One release by its id, or None."""
        with self._db.read() as db:
            row = db.execute("SELECT * FROM releases WHERE release_id = ?", (release_id,)).fetchone()
            return to_release(row) if row else None

    def commit(self, release: Release, *, report_ids: Sequence[str]) -> None:
        """One durable transaction: the old head steps down, `release` becomes current, its reports become trained.

        The base starts lineage 0 and a rollback starts the next one; every other release must have the head as its
        parent and continues its lineage. Raises StoreError, with nothing changed, when the chain would get a gap or
        when a report was trained or dropped before.
        """
        with self._db.write(durable=True) as db:
            head = _head(db, release.scenario)
            lineage = _lineage(db, head, release)
            db.execute("UPDATE releases SET current = 0 WHERE scenario = ? AND current = 1", (release.scenario,))
            insert(db, "releases", release_columns(release) | {"current": True, "lineage": lineage})
            moved = db.execute(
                "UPDATE reports SET state = 'trained', release_id = ?, step = ? "
                f"WHERE state IN ('queued', 'leased') AND id IN ({holes(report_ids)})",
                (release.release_id, release.step, *report_ids),
            ).rowcount
            if moved != len(report_ids):
                raise StoreError(
                    f"release {release.release_id} trains {len(report_ids)} reports, but only {moved} were waiting",
                    fix=FAULT,
                )

    def set_checkpoint(self, release_id: str, checkpoint: str | None) -> None:
        """Where the trainer's state of a release lies, relative to the run directory; None: not restorable."""
        with self._db.write(durable=True) as db:
            db.execute("UPDATE releases SET checkpoint = ? WHERE release_id = ?", (checkpoint, release_id))

    def position(self, version: str) -> tuple[int, int] | None:
        """(lineage, step) of the newest release that served as this weight version; None when there is none."""
        with self._db.read() as db:
            query = "SELECT lineage, step FROM releases WHERE weight_version = ? ORDER BY seq DESC LIMIT 1"
            row = db.execute(query, (version,)).fetchone()
            return (row["lineage"], row["step"]) if row else None


def _head(db: sqlite3.Connection, scenario: str) -> sqlite3.Row | None:
    query = "SELECT * FROM releases WHERE scenario = ? AND current = 1"
    row: sqlite3.Row | None = db.execute(query, (scenario,)).fetchone()
    return row


def _lineage(db: sqlite3.Connection, head: sqlite3.Row | None, release: Release) -> int:
    if release.operation is Operation.ROLLBACK:
        query = "SELECT max(lineage) FROM releases WHERE scenario = ?"
        return int(db.execute(query, (release.scenario,)).fetchone()[0] or 0) + 1
    if release.parent_release_id != (head["release_id"] if head else None):
        raise StoreError(
            f"release {release.release_id} has parent {release.parent_release_id}, "
            f"but the head is {head['release_id'] if head else None}",
            fix=FAULT,
        )
    return int(head["lineage"]) if head else 0
