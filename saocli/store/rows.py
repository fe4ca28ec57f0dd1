"""Table rows to carriers and back."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from saocli.store.blobs import ID_BYTES, pack_ids, pack_logprobs, unpack_ids, unpack_logprobs
from saocli.store.entries import ReceiptEntry, ReceiptState, State
from saocli.types import Exchange, FinishReason, Operation, Release, Report, Sampling, Span


def dump(value: Any) -> str:
    """JSON as stored: compact, and never NaN (ValueError)."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def exchange_columns(exchange: Exchange) -> dict[str, Any]:
    """The columns of `exchanges`, without `seq`."""
    return {
        "receipt": exchange.receipt,
        "scenario": exchange.scenario,
        "session": exchange.session,
        "prompt_ids": pack_ids(exchange.prompt_ids),
        "output_ids": pack_ids(exchange.output_ids),
        "logprobs": pack_logprobs(exchange.logprobs),
        "spans": dump([[span.version, span.start, span.end] for span in exchange.spans]),
        "sampling": dump(asdict(exchange.sampling)),
        "finish_reason": exchange.finish_reason.value,
        "text": exchange.text,
        "created_at": exchange.created_at,
        "tags": dump(dict(exchange.tags)),
        "trainable": exchange.trainable,
        "why_not": exchange.why_not,
    }


def to_exchange(row: sqlite3.Row) -> Exchange:
    """A row of `exchanges`."""
    return Exchange(
        receipt=row["receipt"],
        scenario=row["scenario"],
        session=row["session"],
        prompt_ids=unpack_ids(row["prompt_ids"]),
        output_ids=unpack_ids(row["output_ids"]),
        logprobs=unpack_logprobs(row["logprobs"]),
        spans=_spans(row["spans"]),
        sampling=_sampling(row["sampling"]),
        finish_reason=FinishReason(row["finish_reason"]),
        text=row["text"],
        created_at=row["created_at"],
        tags=json.loads(row["tags"]),
        trainable=bool(row["trainable"]),
        why_not=row["why_not"],
    )


ENTRY_COLUMNS = (
    "seq, receipt, scenario, session, length(prompt_ids) AS prompt_bytes, length(output_ids) AS output_bytes, spans, "
    "sampling, finish_reason, text, created_at, tags, trainable, why_not, reported, claim"
)


def to_entry(row: sqlite3.Row, standing: ReceiptState) -> ReceiptEntry:
    """A row of ENTRY_COLUMNS of `exchanges`."""
    return ReceiptEntry(
        seq=row["seq"],
        receipt=row["receipt"],
        scenario=row["scenario"],
        session=row["session"],
        prompt_tokens=row["prompt_bytes"] // ID_BYTES,
        output_tokens=row["output_bytes"] // ID_BYTES,
        versions=tuple(dict.fromkeys(span.version for span in _spans(row["spans"]))),
        sampling=_sampling(row["sampling"]),
        finish_reason=FinishReason(row["finish_reason"]),
        text=row["text"],
        created_at=row["created_at"],
        tags=json.loads(row["tags"]),
        trainable=bool(row["trainable"]),
        why_not=row["why_not"],
        standing=standing,
    )


def report_columns(report: Report) -> dict[str, Any]:
    """The columns of `reports` that the report itself fills."""
    return {
        "id": report.id,
        "scenario": report.scenario,
        "score": report.score,
        "feedback": dump(report.feedback),
        "metadata": dump(dict(report.metadata)),
        "created_at": report.created_at,
    }


def to_report(row: sqlite3.Row, references: tuple[str, ...]) -> Report:
    """A row of `reports`."""
    return Report(
        id=row["id"],
        scenario=row["scenario"],
        score=row["score"],
        references=references,
        created_at=row["created_at"],
        feedback=json.loads(row["feedback"]),
        metadata=json.loads(row["metadata"]),
    )


def report_standing(row: sqlite3.Row) -> ReceiptState:
    """Where a row of `reports` stands."""
    return ReceiptState(state=State(row["state"]), reason=row["reason"], release_id=row["release_id"], step=row["step"])


def release_columns(release: Release) -> dict[str, Any]:
    """The columns of `releases` that the release itself fills."""
    return {
        "release_id": release.release_id,
        "scenario": release.scenario,
        "step": release.step,
        "operation": release.operation.value,
        "parent_release_id": release.parent_release_id,
        "weight_version": release.weight_version,
        "arm": release.arm,
        "created_at": release.created_at,
        "receipts": dump(list(release.receipts)),
        "metrics": dump(dict(release.metrics)),
        "checkpoint": release.checkpoint,
        "digest": release.digest,
    }


def to_release(row: sqlite3.Row) -> Release:
    """A row of `releases`."""
    return Release(
        release_id=row["release_id"],
        scenario=row["scenario"],
        step=row["step"],
        operation=Operation(row["operation"]),
        current=bool(row["current"]),
        parent_release_id=row["parent_release_id"],
        weight_version=row["weight_version"],
        arm=row["arm"],
        created_at=row["created_at"],
        receipts=tuple(json.loads(row["receipts"])),
        metrics=json.loads(row["metrics"]),
        checkpoint=row["checkpoint"],
        digest=row["digest"],
    )


def insert(connection: sqlite3.Connection, table: str, columns: dict[str, Any]) -> int:
    """Insert one row; returns its rowid."""
    names = ", ".join(columns)
    holes = ", ".join(f":{name}" for name in columns)
    cursor = connection.execute(f"INSERT INTO {table} ({names}) VALUES ({holes})", columns)
    assert cursor.lastrowid is not None
    return cursor.lastrowid


def holes(values: Iterable[Any]) -> str:
    """`?, ?, …` for an IN clause."""
    return ", ".join("?" for _ in values)


def _spans(stored: str) -> tuple[Span, ...]:
    return tuple(Span(version=version, start=start, end=end) for version, start, end in json.loads(stored))


def _sampling(stored: str) -> Sampling:
    fields = json.loads(stored)
    return Sampling(**(fields | {"stop": tuple(fields["stop"])}))
