"""Receipts and reports: what was generated, what was scored, and where each report stands.

A report goes queued → leased → trained (the last one by `Releases.commit`), or is dropped with a reason, or was only
ever recorded. Every method is one transaction and may be called from any thread.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from saocli.errors import StoreError
from saocli.store.database import Database
from saocli.store.entries import (
    ALREADY_REPORTED,
    Accepted,
    Conflict,
    Counts,
    QueuedReport,
    ReceiptEntry,
    ReceiptState,
    ReportEntry,
    State,
)
from saocli.store.rows import (
    ENTRY_COLUMNS,
    exchange_columns,
    holes,
    insert,
    report_columns,
    report_standing,
    to_entry,
    to_exchange,
    to_report,
)
from saocli.types import Exchange, Report


class Records:
    """The recorded exchanges and reports of a run."""

    def __init__(self, database: Database) -> None:
        self._db = database

    def ensure_scenario(self, name: str, *, at: float) -> bool:
        """Create the scenario unless it is there; True when it was created."""
        with self._db.write(durable=True) as db:
            return db.execute("INSERT OR IGNORE INTO scenarios VALUES (?, ?)", (name, at)).rowcount == 1

    def scenarios(self) -> list[str]:
        """Names in order of creation."""
        with self._db.read() as db:
            return [row["name"] for row in db.execute("SELECT name FROM scenarios ORDER BY created_at, name")]

    def add_exchange(self, exchange: Exchange) -> None:
        """Record one generation under its receipt; its scenario must exist."""
        with self._db.write(durable=False) as db:
            seq = _number(db, exchange.receipt, exchange.scenario, "inference")
            insert(db, "exchanges", {"seq": seq} | exchange_columns(exchange))

    def get_exchange(self, receipt: str) -> Exchange | None:
        """The generation of a receipt, or None."""
        with self._db.read() as db:
            row = db.execute("SELECT * FROM exchanges WHERE receipt = ?", (receipt,)).fetchone()
            return to_exchange(row) if row else None

    def accept_report(
        self, report: Report, *, fingerprint: str, trains: bool, reason: str | None, group: str | None = None
    ) -> Accepted | Conflict:
        """Store a report durably, once: a retry with the same id and fingerprint gets the stored answer.

        `trains` and `reason` are the processors' judgement; a receipt that another report trains on turns it into
        `trains=False, reason="already_reported"`. `group` is the prompt that its sample answers, as `histories` asks
        for it. The receipts referred to must be recorded.
        """
        with self._db.write(durable=True) as db:
            stored = db.execute("SELECT * FROM reports WHERE id = ?", (report.id,)).fetchone()
            if stored is not None and stored["fingerprint"] == fingerprint:
                return _answer(stored)
            if db.execute("SELECT 1 FROM records WHERE id = ?", (report.id,)).fetchone():
                return Conflict(report_id=report.id)
            named = holes(report.references)
            taken = f"SELECT 1 FROM exchanges WHERE receipt IN ({named}) AND claim IS NOT NULL LIMIT 1"
            if trains and db.execute(taken, report.references).fetchone():
                trains, reason = False, ALREADY_REPORTED
            state = State.QUEUED if trains else State.RECORDED
            judged = {"fingerprint": fingerprint, "trains": trains, "state": state.value, "reason": reason}
            seq = _number(db, report.id, report.scenario, "report")
            insert(db, "reports", {"seq": seq, "prompt_group": group} | report_columns(report) | judged)
            for position, receipt in enumerate(report.references):
                insert(db, "report_references", {"report": report.id, "position": position, "receipt": receipt})
            claim = report.id if trains else None
            db.execute(
                f"UPDATE exchanges SET reported = 1, claim = coalesce(claim, ?) WHERE receipt IN ({named})",
                (claim, *report.references),
            )
            return Accepted(report_id=report.id, scenario=report.scenario, trains=trains, reason=reason)

    def queued(self, limit: int | None = None, *, after: int = 0) -> list[QueuedReport]:
        """Reports that wait for a step, with exchanges, in order of acceptance: at most `limit` past seq `after`."""
        with self._db.read() as db:
            waiting = "FROM reports INDEXED BY queued_reports WHERE state = 'queued' AND seq > ?"
            most = -1 if limit is None else limit
            rows = db.execute(f"SELECT * {waiting} ORDER BY seq LIMIT ?", (after, most)).fetchall()
            return [self._with_exchanges(db, row) for row in rows]

    def histories(self, step: int, groups: Sequence[str], *, window: int) -> list[tuple[float, ...]]:
        """For each prompt its at most `window` latest scores that earlier steps took, oldest first.

        A prompt that no earlier step took gets the latest scores over all prompts. Only what steps before `step` took
        counts, so a step that is made again sees the same.
        """
        with self._db.read() as db:
            everywhere = _taken_scores(db, step, window)
            return [_taken_scores(db, step, window, group) or everywhere for group in groups]

    def lease(self, step: int, report_ids: Sequence[str]) -> None:
        """Take queued reports into `step` in the order of its batch, durably: all of them, or StoreError."""
        with self._db.write(durable=True) as db:
            moved = db.executemany(
                "UPDATE reports SET state = 'leased', step = ?, position = ? WHERE state = 'queued' AND id = ?",
                [(step, position, report_id) for position, report_id in enumerate(report_ids)],
            ).rowcount
            if moved != len(report_ids):
                raise StoreError(
                    f"step {step} asked for {len(report_ids)} queued reports and found {moved}",
                    fix="this is a fault of sao: no report was moved; restart the run",
                )

    def batch(self, step: int) -> list[QueuedReport]:
        """The reports that `step` holds or has trained, with exchanges, in the order of its batch."""
        with self._db.read() as db:
            query = (
                "SELECT * FROM reports INDEXED BY taken_by_step "
                "WHERE state IN ('leased', 'trained') AND step = ? ORDER BY position, seq"
            )
            return [self._with_exchanges(db, row) for row in db.execute(query, (step,)).fetchall()]

    def drop(self, report_id: str, reason: str) -> None:
        """A queued or leased report will not train, for this reason."""
        with self._db.write(durable=True) as db:
            db.execute(
                "UPDATE reports SET state = 'dropped', reason = ? WHERE id = ? AND state IN ('queued', 'leased')",
                (reason, report_id),
            )

    def drops(self) -> dict[str, int]:
        """Reports that do not train, by reason: dropped later or refused when they were accepted."""
        with self._db.read() as db:
            query = "SELECT reason, count(*) FROM reports WHERE reason IS NOT NULL GROUP BY reason ORDER BY reason"
            return dict(tuple(row) for row in db.execute(query))

    def counts(self) -> Counts:
        """How many receipts are open and how many reports stand where."""
        with self._db.read() as db:
            states = dict(tuple(row) for row in db.execute("SELECT state, count(*) FROM reports GROUP BY state"))
            query = "SELECT count(*) FROM exchanges WHERE reported = 0 AND trainable = 1"
            open_receipts = db.execute(query).fetchone()[0]
        standing = {state.value: states.get(state.value, 0) for state in State if state is not State.OPEN}
        return Counts(open=open_receipts, **standing)

    def waiting(self) -> tuple[int, int]:
        """How many reports are queued and how many leased; as quick when millions are trained."""
        with self._db.read() as db:
            queued = "SELECT count(*) FROM reports INDEXED BY queued_reports WHERE state = 'queued'"
            leased = "SELECT count(*) FROM reports INDEXED BY reports_by_state WHERE state = 'leased'"
            return db.execute(queued).fetchone()[0], db.execute(leased).fetchone()[0]

    def open_receipts(self, scenario: str, *, since: float) -> dict[str, float]:
        """Trainable receipts without a report, made at `since` or later → when each was made, oldest first."""
        with self._db.read() as db:
            query = (
                "SELECT receipt, created_at FROM exchanges INDEXED BY open_exchanges WHERE reported = 0 "
                "AND trainable = 1 AND scenario = ? AND created_at >= ? ORDER BY seq"
            )
            return dict(tuple(row) for row in db.execute(query, (scenario, since)))

    def tally(self) -> dict[tuple[str, str | None], int]:
        """Reports by state and reason."""
        with self._db.read() as db:
            query = "SELECT state, reason, count(*) FROM reports GROUP BY state, reason ORDER BY state, reason"
            return {(state, reason): count for state, reason, count in db.execute(query)}

    def generations(self) -> int:
        """How many generations were recorded so far."""
        with self._db.read() as db:
            return int(db.execute("SELECT count(*) FROM exchanges").fetchone()[0])

    def receipt_state(self, receipt: str) -> ReceiptState | None:
        """Where a receipt stands, or None when it is unknown."""
        with self._db.read() as db:
            row = db.execute(f"SELECT {ENTRY_COLUMNS} FROM exchanges WHERE receipt = ?", (receipt,)).fetchone()
            return _standing(db, row) if row else None

    def entry(self, receipt: str) -> ReceiptEntry | None:
        """A receipt as `page` shows it, or None when it is unknown."""
        with self._db.read() as db:
            row = db.execute(f"SELECT {ENTRY_COLUMNS} FROM exchanges WHERE receipt = ?", (receipt,)).fetchone()
            return to_entry(row, _standing(db, row)) if row else None

    def page(self, scenario: str, after: int = 0, limit: int = 100) -> list[ReceiptEntry | ReportEntry]:
        """The next records of a scenario after sequence number `after`, receipts and reports in one order."""
        with self._db.read() as db:
            query = "SELECT seq, request_type FROM records WHERE scenario = ? AND seq > ? ORDER BY seq LIMIT ?"
            return [
                self._receipt_entry(db, seq) if request_type == "inference" else self._report_entry(db, seq)
                for seq, request_type in db.execute(query, (scenario, after, limit)).fetchall()
            ]

    def reports(self, scenario: str) -> list[ReportEntry]:
        """Every report of a scenario, in order of acceptance."""
        with self._db.read() as db:
            query = "SELECT seq FROM records WHERE scenario = ? AND request_type = 'report' ORDER BY seq"
            return [self._report_entry(db, seq) for (seq,) in db.execute(query, (scenario,)).fetchall()]

    def _receipt_entry(self, db: sqlite3.Connection, seq: int) -> ReceiptEntry:
        row = db.execute(f"SELECT {ENTRY_COLUMNS} FROM exchanges WHERE seq = ?", (seq,)).fetchone()
        return to_entry(row, _standing(db, row))

    def _report_entry(self, db: sqlite3.Connection, seq: int) -> ReportEntry:
        row = db.execute("SELECT * FROM reports WHERE seq = ?", (seq,)).fetchone()
        report = to_report(row, _references(db, row["id"]))
        return ReportEntry(seq=seq, report=report, trains=bool(row["trains"]), standing=report_standing(row))

    def _with_exchanges(self, db: sqlite3.Connection, row: sqlite3.Row) -> QueuedReport:
        references = _references(db, row["id"])
        exchanges = tuple(
            to_exchange(db.execute("SELECT * FROM exchanges WHERE receipt = ?", (receipt,)).fetchone())
            for receipt in references
        )
        return QueuedReport(seq=row["seq"], report=to_report(row, references), exchanges=exchanges)


def _number(db: sqlite3.Connection, record_id: str, scenario: str, request_type: str) -> int:
    """The next sequence number, given to this record."""
    return insert(db, "records", {"id": record_id, "scenario": scenario, "request_type": request_type})


# The planner, which has no statistics, would look reports up by state and sort them.
TAKEN = """
    SELECT score FROM reports INDEXED BY taken_by_step
    WHERE state IN ('leased', 'trained') AND step < :step ORDER BY step DESC, seq DESC LIMIT :window
"""
TAKEN_OF_PROMPT = """
    SELECT score FROM reports INDEXED BY taken_by_prompt
    WHERE state IN ('leased', 'trained') AND prompt_group = :group AND step < :step
    ORDER BY step DESC, seq DESC LIMIT :window
"""


def _taken_scores(db: sqlite3.Connection, step: int, window: int, group: str | None = None) -> tuple[float, ...]:
    """The `window` latest scores that steps before `step` took, of one prompt or of all, oldest first."""
    query = TAKEN if group is None else TAKEN_OF_PROMPT
    rows = db.execute(query, {"step": step, "window": window, "group": group}).fetchall()
    return tuple(row["score"] for row in reversed(rows))


def _answer(row: sqlite3.Row) -> Accepted:
    """As it was answered first: a reason that came later, when it was dropped, is not part of it."""
    trains = bool(row["trains"])
    return Accepted(
        report_id=row["id"], scenario=row["scenario"], trains=trains, reason=None if trains else row["reason"]
    )


def _references(db: sqlite3.Connection, report_id: str) -> tuple[str, ...]:
    query = "SELECT receipt FROM report_references WHERE report = ? ORDER BY position"
    return tuple(row["receipt"] for row in db.execute(query, (report_id,)))


def _standing(db: sqlite3.Connection, row: sqlite3.Row) -> ReceiptState:
    """A receipt stands where the report that trains on it does, else where its last report does."""
    if row["claim"] is not None:
        return report_standing(db.execute("SELECT * FROM reports WHERE id = ?", (row["claim"],)).fetchone())
    if row["reported"]:
        query = (
            "SELECT reports.* FROM report_references JOIN reports ON reports.id = report_references.report "
            "WHERE report_references.receipt = ? ORDER BY reports.seq DESC LIMIT 1"
        )
        return report_standing(db.execute(query, (row["receipt"],)).fetchone())
    return ReceiptState(state=State.OPEN, reason=row["why_not"], release_id=None, step=None)
