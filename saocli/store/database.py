"""The run's SQLite file: one writer, one reader, and what is durable when.

Durability. The journal is a write-ahead log. A write transaction is either *durable* (`synchronous=FULL`: the log is
flushed to the disk before COMMIT returns) or not (`NORMAL`: the log reaches the disk with the next durable commit or
checkpoint). Reports and releases are durable: an acknowledged score survives a power cut. Receipts are not, since a
generation lost to a power cut was never graded; and a durable commit flushes the log before it too, so a report
never outlives its receipt. A killed process loses nothing in either mode.

Concurrency. One connection writes and another reads, each behind its own lock: any thread may call, readers never wait
for a flush, and what was committed is seen by the next read. Other processes can open the file while a run writes.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from saocli.errors import StoreError
from saocli.store.schema import MIGRATIONS, SCHEMA, VERSION

BUSY_TIMEOUT_S = 10.0
FIX_DAMAGE = "restore {name} from a copy, or start a new run"


class Database:
    """The open file. Raises StoreError when it is missing, foreign, corrupt or cannot be written."""

    def __init__(self, path: Path, *, readonly: bool = False) -> None:
        self.path = path
        self._writing = threading.Lock()
        self._reading = threading.Lock()
        self._durable: bool | None = None  # what the writer's synchronous pragma is at
        self._writer: sqlite3.Connection | None = None
        with self._explained():
            if not readonly:
                self._writer = self._connect("rwc")
                self._writer.execute("PRAGMA journal_mode = WAL")
                self._lay_out()
            self._reader = self._connect("ro")
            found = _version(self._reader)
        # An older file, which a run directory that nobody goes on with has, can be read as it is.
        if found != VERSION and not (readonly and found in MIGRATIONS):
            self.close()
            raise StoreError(
                f"{path} has schema version {found}, this program reads {VERSION}",
                fix="open the run with the version of sao that wrote it (see its environment.json)",
            )

    def check(self) -> None:
        """Read every page. Raises StoreError, with a way out, for a file that is damaged."""
        with self.read() as connection:
            found = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
        if found != "ok":
            raise StoreError(f"{self.path} is damaged: {found}", fix=FIX_DAMAGE.format(name=self.path.name))

    def close(self) -> None:
        """Close both connections; the last one to close folds the log into the file."""
        for connection in (self._reader, self._writer):
            if connection is not None:
                connection.close()

    @contextmanager
    def write(self, *, durable: bool) -> Iterator[sqlite3.Connection]:
        """One transaction: all of it happens, or, when the body raises, none of it."""
        if self._writer is None:
            raise StoreError(
                f"{self.path} is open for reading only", fix="open the run directory with its own `sao serve`"
            )
        with self._writing, self._explained():
            if durable is not self._durable:
                self._writer.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
                self._durable = durable
            self._writer.execute("BEGIN IMMEDIATE")
            try:
                yield self._writer
                self._writer.execute("COMMIT")
            finally:
                if self._writer.in_transaction:
                    self._writer.execute("ROLLBACK")

    @contextmanager
    def read(self) -> Iterator[sqlite3.Connection]:
        """Several statements on one snapshot of what is committed."""
        with self._reading, self._explained():
            self._reader.execute("BEGIN")
            try:
                yield self._reader
            finally:
                self._reader.execute("ROLLBACK")

    def _connect(self, mode: str) -> sqlite3.Connection:
        uri = f"{self.path.absolute().as_uri()}?mode={mode}"
        connection = sqlite3.connect(
            uri, uri=True, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
        )
        connection.row_factory = sqlite3.Row
        return connection

    def _lay_out(self) -> None:
        """Lay the tables into an empty file, bring an older one up to date; leaves any other file as it is."""
        with self.write(durable=True) as connection:
            version = _version(connection)
            empty = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] == 0
            if not empty and version not in MIGRATIONS:
                return
            for statement in SCHEMA if empty else _steps_from(version):
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {VERSION}")

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """SQLite's errors as StoreError with the file and a way out."""
        try:
            yield
        except sqlite3.Error as error:
            raise StoreError(f"{self.path}: {error}", fix=self._fix(error)) from error

    def _fix(self, error: sqlite3.Error) -> str:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        return {
            sqlite3.SQLITE_FULL: "free disk space; what was accepted before is intact",
            sqlite3.SQLITE_READONLY: f"make {self.path.parent} writable",
            sqlite3.SQLITE_CANTOPEN: f"check that {self.path.parent} exists and is writable",
            sqlite3.SQLITE_BUSY: "another process holds the file; stop it and try again",
            sqlite3.SQLITE_CORRUPT: FIX_DAMAGE.format(name=self.path.name),
            sqlite3.SQLITE_NOTADB: "the file is not a run database; name another run directory",
        }.get(code, "check the disk and the permissions of the run directory")


def _version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def _steps_from(version: int) -> Iterator[str]:
    """The statements from a file of `version` to one of VERSION."""
    while version in MIGRATIONS:
        yield from MIGRATIONS[version]
        version += 1
