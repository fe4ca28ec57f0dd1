"""A run directory's integrity: database, chain, weights and states, each broken once."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest
from storekit import exchange

from saocli.doctor.finding import Finding, Mark
from saocli.doctor.run import examine_run, exported_digest
from saocli.models.tiny import build_tiny
from saocli.store.database import Database
from saocli.store.records import Records
from saocli.store.releases import Releases
from saocli.store.run import RunDirectory
from saocli.stored import MARKER
from saocli.types import Operation, Release


def release(step: int, digest: str, **fields: Any) -> Release:
    defaults: dict[str, Any] = {
        "release_id": f"s@{step}",
        "scenario": "s",
        "step": step,
        "operation": Operation.TRAINING if step else Operation.BASE,
        "current": True,
        "parent_release_id": f"s@{step - 1}" if step else None,
        "weight_version": f"s@{step}",
        "arm": "sao",
        "created_at": 1.0,
        "receipts": (),
        "metrics": {},
        "checkpoint": f"releases/{step:06d}/state" if step else None,
        "digest": digest,
    }
    return Release(**(defaults | fields))


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    """Base and two steps; the last one has weights and state on disk."""
    directory = RunDirectory.create(tmp_path, "x")
    weights = directory.releases / "000002" / "weights"
    weights.mkdir(parents=True)
    build_tiny(weights, 0)
    state = directory.releases / "000002" / "state"
    state.mkdir()
    (state / MARKER).write_text("{}")
    database = Database(directory.records_db)
    Records(database).ensure_scenario("s", at=0.0)
    Records(database).add_exchange(exchange("r1"))
    releases = Releases(database)
    for step in range(3):
        releases.commit(release(step, exported_digest(weights)), report_ids=())
    releases.set_checkpoint("s@1", None)
    database.close()
    return directory


def by_name(found: list[Finding]) -> dict[str, Finding]:
    return {one.what: one for one in found}


def only_miss(found: list[Finding]) -> Finding:
    misses = [one for one in found if one.mark is Mark.MISSING]
    assert len(misses) == 1, found
    assert misses[0].fix
    return misses[0]


def test_a_whole_run(run: RunDirectory) -> None:
    found = by_name(examine_run(run))
    assert list(found) == ["database", "references", "chain", "head weights", "trainer states"]
    assert {one.mark for one in found.values()} == {Mark.OK}
    assert found["chain"].found == "3 releases without a gap, head s@2"
    assert found["trainer states"].found == "1 complete: s@2"


def test_a_corrupted_page(run: RunDirectory) -> None:
    data = bytearray(run.records_db.read_bytes())
    page = int.from_bytes(data[16:18], "big")
    for start in range(2 * page, len(data), page):
        data[start : start + 64] = b"\xff" * 64
    run.records_db.write_bytes(data)
    found = examine_run(run)
    assert found[0].mark is Mark.MISSING
    assert found[0].what == "database"
    assert found[0].fix


def test_a_row_that_refers_to_nothing(run: RunDirectory) -> None:
    with sqlite3.connect(run.records_db) as db:
        db.execute("DELETE FROM records")
    assert only_miss(examine_run(run)).what == "references"


def test_a_gap_in_the_chain(run: RunDirectory) -> None:
    with sqlite3.connect(run.records_db) as db:
        db.execute("DELETE FROM releases WHERE step = 1")
    miss = only_miss(examine_run(run))
    assert (miss.what, miss.found) == ("chain", "gap before s@2")


def test_weights_that_are_gone_cut_or_others(run: RunDirectory) -> None:
    file = run.releases / "000002" / "weights" / "model.safetensors"
    whole = file.read_bytes()
    file.write_bytes(whole[:-4] + bytes(4))
    assert "sha256" in only_miss(examine_run(run)).found
    file.write_bytes(whole[:-4])
    assert "its header says" in only_miss(examine_run(run)).found
    file.unlink()
    assert only_miss(examine_run(run)).what == "head weights"
    file.write_bytes(whole)
    assert not [one for one in examine_run(run) if one.mark is Mark.MISSING]


def test_a_state_that_was_not_finished(run: RunDirectory) -> None:
    (run.releases / "000002" / "state" / MARKER).unlink()
    miss = only_miss(examine_run(run))
    assert miss.what == "trainer states"
    assert "none is left" in str(miss.fix)


def test_the_digest_is_the_trainer_s(tmp_path: Path) -> None:
    import torch

    from saocli.trainer.megatron.export import WEIGHTS, write_safetensors

    torch.manual_seed(0)
    tensors = {"b": torch.randn(3, 2), "a": torch.randn(4).bfloat16(), "c.d": torch.randn(1, 1, 5)}
    digest = write_safetensors(tmp_path / WEIGHTS, tensors)
    assert exported_digest(tmp_path) == digest


def test_a_run_without_releases(tmp_path: Path) -> None:
    directory = RunDirectory.create(tmp_path, "x")
    Database(directory.records_db).close()
    assert by_name(examine_run(directory))["chain"].mark is Mark.NOTE
