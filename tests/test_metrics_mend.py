"""metrics.jsonl after a kill: one record for each committed step, in order."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from gatewaykit import base_release, release
from test_metrics_record import moments, sample

from saocli.metrics.mend import first_unwritten, mend
from saocli.metrics.record import CONTRACT, step_record
from saocli.metrics.rolling import Rolling
from saocli.metrics.sinks import JsonlSink, read_records
from saocli.metrics.table import note
from saocli.types import Batch, Operation, StepOutput

METRICS = dict.fromkeys(CONTRACT) | {"pg_loss": 0.25, "sao/actor_trained": 1.0}
CHAIN = [
    base_release(),
    release(1, parent="s@0", metrics=METRICS),
    release(2, parent="s@1", metrics=METRICS),
    release(3, Operation.NOOP, parent="s@2", metrics=METRICS),
]


def batch(step: int) -> Batch:
    return Batch(step=step, samples=(sample(step / 10),))


def output(step: int) -> StepOutput:
    return StepOutput(step=step, metrics={}, actor_trained=True, moments=(moments(step / 10, 0.0),))


def written(path: Path, *steps: int) -> list[dict[str, Any]]:
    sink = JsonlSink(path)
    records = [step_record(CHAIN[step], batch(step), output(step), advantage="gae") for step in steps]
    for record in records:
        sink.write(record)
    sink.close()
    return records


def mended(path: Path, chain: list[Any] = CHAIN, **options: Any) -> list[dict[str, Any]]:
    records = mend(path, chain, **({"batch": batch, "outputs": {}, "advantage": "gae"} | options))
    assert list(read_records(path)) == records
    return records


def test_a_whole_file_stays_byte_for_byte(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    records = written(path, 1, 2, 3)
    before = path.stat()
    assert mended(path) == records
    assert path.stat().st_ino == before.st_ino
    assert mend(tmp_path / "none", [CHAIN[0]], batch=batch, outputs={}, advantage="gae") == []


@pytest.mark.parametrize("torn", ['{"step": 4, "rel', "\n", "\x00\x00\n"])
def test_half_lines_and_steps_that_were_not_committed_go(tmp_path: Path, torn: str) -> None:
    path = tmp_path / "metrics.jsonl"
    records = written(path, 1, 2, 3)
    with path.open("a") as file:
        file.write(torn)
    assert mended(path, CHAIN[:3]) == records[:2]
    assert path.read_text().count("\n") == 2


def test_a_committed_step_without_a_record_gets_it_from_its_release(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    whole = written(tmp_path / "whole.jsonl", 1, 2, 3)
    written(path, 1)
    assert first_unwritten(path, CHAIN) == 2
    records = mended(path, outputs={2: output(2)})
    assert first_unwritten(path, CHAIN) is None
    assert records[:2] == whole[:2], "made again: all of it is known"
    assert records[2] == whole[2] | {"noop_reason": "not_recorded", "moments": []}
    assert Rolling.restored(8, records).reward() == pytest.approx(0.2)
    idle = replace(CHAIN[1], metrics=METRICS | {"sao/actor_trained": 0.0})
    path.unlink()
    assert mended(path, [CHAIN[0], idle])[0]["actor_idle"] == "not_recorded"


def test_a_rollback_has_a_record_too(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    written(path, 1, 2, 3)
    back = release(4, Operation.ROLLBACK, parent="s@3", metrics={"rollback/to_step": 1.0})
    record = mended(path, [*CHAIN, back])[-1]
    assert (record["operation"], record["rollouts"], record["scores"], record["pg_loss"]) == ("rollback", 0, [], None)
    assert note(record) == "rolled back to step 1"
    assert json.loads(path.read_text().splitlines()[-1]) == record
