"""Whether a run directory is whole: its database, its chain, and the files that the chain names."""

from __future__ import annotations

import hashlib
import itertools
import json
import mmap
from collections.abc import Iterator, Sequence
from pathlib import Path

from saocli.digest import tensor_heading
from saocli.doctor.finding import Finding, Mark, guarded, verdict
from saocli.doctor.words import place
from saocli.models.complete import fault
from saocli.store.chain import weights_folder
from saocli.store.database import Database
from saocli.store.releases import Releases
from saocli.store.run import RunDirectory
from saocli.stored import MARKER
from saocli.types import Operation, Release

RESTORE = "restore the run directory from a copy, or go on from another release"


def examine_run(run: RunDirectory) -> list[Finding]:
    """Reads only, and may be used while the run writes."""
    found = guarded("database", lambda: _database(run))
    if any(one.mark is Mark.MISSING for one in found):
        return found
    return found + guarded("chain", lambda: _chain(run))


def _database(run: RunDirectory) -> Iterator[Finding]:
    database = Database(run.records_db, readonly=True)
    try:
        with database.read() as db:
            faults = [str(row[0]) for row in db.execute("PRAGMA integrity_check(5)")]
            dangling = db.execute("PRAGMA foreign_key_check").fetchall()
            pages = db.execute("PRAGMA page_count").fetchone()[0]
    finally:
        database.close()
    yield verdict(
        "database",
        faults == ["ok"],
        found=f"{place(run.records_db)}, {pages:,} pages" if faults == ["ok"] else "; ".join(faults),
        needed="PRAGMA integrity_check",
        fix="restore records.db from a copy; `sqlite3 records.db .recover` saves what can be read",
    )
    yield verdict(
        "references",
        not dangling,
        found="every row that is referred to is there" if not dangling else f"{len(dangling)} rows refer to nothing",
        needed="PRAGMA foreign_key_check",
        fix="restore records.db from a copy",
    )


def _chain(run: RunDirectory) -> Iterator[Finding]:
    database = Database(run.records_db, readonly=True)
    try:
        releases = Releases(database)
        scenario = releases.scenario()
        chain = releases.list(scenario) if scenario else []
    finally:
        database.close()
    if not chain:
        yield Finding(Mark.NOTE, "chain", "no release yet")
        return
    yield _order(chain)
    head = next((release for release in chain if release.current), None)
    if head is not None:
        yield from guarded("head weights", lambda: [_weights(run, head)])
    yield _states(run, chain)


def _order(chain: Sequence[Release]) -> Finding:
    """Newest first: every release follows the one before it, and exactly one is current."""
    gaps = [
        newer.release_id
        for newer, older in itertools.pairwise(chain)
        if newer.operation is not Operation.ROLLBACK and newer.parent_release_id != older.release_id
    ]
    heads = [release.release_id for release in chain if release.current]
    if len(heads) == 1 and not gaps:
        return Finding(Mark.OK, "chain", f"{len(chain):,} releases without a gap, head {heads[0]}")
    wrong = f"gap before {', '.join(gaps)}" if gaps else f"{len(heads)} heads"
    return Finding(Mark.MISSING, "chain", wrong, "one head, no gap", RESTORE)


def _weights(run: RunDirectory, head: Release) -> Finding:
    """The weights that the head serves: whole, and those that the chain names. Reads all of them."""
    folder = weights_folder(run, head)
    if folder is None and head.operation is Operation.BASE:
        return Finding(Mark.NOTE, "head weights", f"{head.release_id} serves the model as it came")
    where = run.releases / f"{int(head.weight_version.rsplit('@', 1)[1]):06d}" / "weights"
    if folder is None:
        return Finding(Mark.MISSING, "head weights", f"{place(where)} is not there", head.weight_version, RESTORE)
    if wrong := fault(folder):
        return Finding(Mark.MISSING, "head weights", wrong, head.weight_version, RESTORE)
    digest = exported_digest(folder)
    return verdict(
        "head weights",
        digest == head.digest,
        found=f"{place(folder)}, sha256 {digest[:12]}",
        needed=f"sha256 {head.digest[:12]} of {head.weight_version}",
        fix=RESTORE,
    )


def exported_digest(folder: Path) -> str:
    """The digest of an export: over each tensor's heading and bytes as they lie in model.safetensors, by name."""
    digest = hashlib.sha256()
    with (
        (folder / "model.safetensors").open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
    ):
        length = int.from_bytes(data[:8], "little")
        header = json.loads(data[8 : 8 + length])
        for name in sorted(header.keys() - {"__metadata__"}):
            entry = header[name]
            start, end = (8 + length + offset for offset in entry["data_offsets"])
            digest.update(tensor_heading(name, entry["dtype"], entry["shape"]))
            with memoryview(data)[start:end] as tensor:
                digest.update(tensor)
    return digest.hexdigest()


def _states(run: RunDirectory, chain: Sequence[Release]) -> Finding:
    """Every checkpoint that the chain names."""
    named = [release for release in chain if release.checkpoint is not None]
    gone = [release for release in named if not (run.path / str(release.checkpoint) / MARKER).is_file()]
    if gone:
        where = ", ".join(place(run.path / str(release.checkpoint)) for release in gone)
        fix = (
            f"the run goes on from another: {', '.join(r.release_id for r in named if r not in gone) or 'none is left'}"
        )
        return Finding(Mark.MISSING, "trainer states", f"not complete: {where}", f"{len(named)} of the chain", fix)
    ids = ", ".join(release.release_id for release in named)
    return Finding(
        Mark.OK if named else Mark.NOTE, "trainer states", f"{len(named)} complete: {ids}" if named else "none"
    )
