"""A disk that fills while a state is saved, and a run directory that is copied to another place."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from killkit import check_chain
from runkit import THREADS, sao

pytestmark = pytest.mark.slow

CONF = ("conf=cpu_smoke", "trainer.critic_warmup_steps=0", "gateway.port=0", *THREADS)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small one."""
    (folder := tmp_path / "disk").mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=160m", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip("mounting a small disk needs privileges")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_disk_that_fills_costs_no_state_and_a_copied_run_goes_on(disk: Path, tmp_path: Path) -> None:
    done = sao("serve", *CONF, "--drive", "--steps", "2", cwd=disk)
    assert done.returncode == 0, done.stderr
    run = (disk / "runs/latest").resolve()
    releases = run / "releases"
    kept = {file: file.stat().st_mtime_ns for file in (releases / "000002").rglob("*")}
    # Room for the next release's weights, 4.5 MB, and for a part of its state, 27 MB.
    ballast = disk / "ballast"
    ballast.write_bytes(bytes(shutil.disk_usage(disk).free - 14 * 2**20))

    full = sao("serve", "--resume", "latest", "--drive", "--steps", "4", cwd=disk)
    assert full.returncode == 1
    assert "No space left on device" in full.stderr
    assert "000003/state could not be written" in full.stderr
    assert "free disk space" in full.stderr
    assert len(check_chain(run)) == 3, "nothing was committed"
    assert {file: file.stat().st_mtime_ns for file in (releases / "000002").rglob("*")} == kept
    assert not list(releases.rglob("*.partial"))

    ballast.unlink()
    done = sao("serve", "--resume", "latest", "--drive", "--steps", "3", cwd=disk)
    assert done.returncode == 0, done.stderr
    assert "the state of sao-smoke@2, digest equal" in done.stdout
    before = check_chain(run)
    assert len(set(before)) == 4

    # Another place, and the first one is gone.
    copied = shutil.copytree(run, tmp_path / "elsewhere" / "copy", symlinks=True)
    shutil.rmtree(disk / "runs")
    done = sao("serve", "--resume", str(copied), "--drive", "--steps", "4", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "the state of sao-smoke@3, digest equal" in done.stdout
    after = check_chain(copied)
    assert after[:4] == before
    assert len(set(after)) == 5
    lines = [json.loads(line) for line in (copied / "attempts.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2, 3, 4]
    assert not (disk / "runs").exists(), "it goes on where it is"
