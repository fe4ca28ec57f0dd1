"""metrics.jsonl brought in step with the release chain, after a process was killed at any moment."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from saocli.metrics.record import rollback_record, step_record
from saocli.metrics.sinks import rewrite
from saocli.types import Batch, Operation, Release, StepOutput

NOT_RECORDED = "not_recorded"  # the reason of a step whose own account of it was lost


def mend(
    path: Path,
    chain: Sequence[Release],
    *,
    batch: Callable[[int], Batch],
    outputs: Mapping[int, StepOutput],
    advantage: str,
) -> list[dict[str, Any]]:
    """Make the file hold one record for each release of `chain` (oldest first) but the base; returns them.

    Half a line and records of steps that were not committed go. A step that was committed and not written down gets its
    record from its release, whose metrics are all there, and its `batch`; what the trainer said of it besides comes
    from `outputs`, by step, if it was made again, else its reasons are "not_recorded" and its moments none.
    """
    written = list(_readable(path))
    found = {(record.get("step"), record.get("release")): record for record in written}
    records = [
        found.get((release.step, release.release_id)) or _rebuilt(release, batch, outputs, advantage)
        for release in chain
        if release.operation is not Operation.BASE
    ]
    if records != written or not _ends_whole(path):
        rewrite(path, records)
    return records


def first_unwritten(path: Path, chain: Sequence[Release]) -> int | None:
    """The first step of `chain` (oldest first) that trained and has no record in the file; None when all have one."""
    found = {record.get("release") for record in _readable(path)}
    trained = (release for release in chain if release.operation.takes_batch)
    return next((release.step for release in trained if release.release_id not in found), None)


def _rebuilt(
    release: Release, batch: Callable[[int], Batch], outputs: Mapping[int, StepOutput], advantage: str
) -> dict[str, Any]:
    if release.operation is Operation.ROLLBACK:
        return rollback_record(release, advantage=advantage)
    idle = release.operation is Operation.TRAINING and release.metrics.get("sao/actor_trained") == 0.0
    lost = StepOutput(
        step=release.step,
        metrics={},
        actor_trained=False,
        noop_reason=NOT_RECORDED if release.operation is Operation.NOOP else None,
        actor_idle=NOT_RECORDED if idle else None,
    )
    return step_record(release, batch(release.step), outputs.get(release.step, lost), advantage=advantage)


def _readable(path: Path) -> Iterator[dict[str, Any]]:
    """The whole lines that are JSON objects."""
    if not path.exists():
        return
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            with contextlib.suppress(ValueError):
                if isinstance(record := json.loads(line), dict) and line.endswith("\n"):
                    yield record


def _ends_whole(path: Path) -> bool:
    return not path.exists() or path.read_bytes()[-1:] in (b"", b"\n")
