"""`sao compare` as a newcomer runs it: real services, one after another, and a report."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from runkit import ENV, SAO, THREADS, descendants, sao, wait_gone

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SMALL = ("rollouts=8", "seeds=1", "tasks.eval.samples=4", *THREADS)


def compare(cwd: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return sao("compare", *arguments, cwd=cwd, timeout=500)


def folder(cwd: Path) -> Path:
    (found,) = cwd.glob("runs/compare-*")
    return found


def without_timing(value: Any) -> Any:
    """A report minus what a clock says."""
    if isinstance(value, dict):
        return {key: without_timing(item) for key, item in value.items() if key != "timing"}
    if isinstance(value, list):
        return [without_timing(item) for item in value]
    return value


def report(cwd: Path) -> Any:
    return without_timing(json.loads((folder(cwd) / "report.json").read_text()))


def scored(cwd: Path) -> list[dict[str, str]]:
    with (folder(cwd) / "rollouts.csv").open() as file:
        return list(csv.DictReader(file))


def attempts(cwd: Path) -> dict[str, list[tuple[str, str]]]:
    """By arm, what was attempted and for which time."""
    found: dict[str, list[tuple[str, str]]] = {}
    for row in scored(cwd):
        found.setdefault(row["label"], []).append((row["problem"], row["attempt"]))
    return {label: sorted(played) for label, played in found.items()}


def heads(cwd: Path) -> dict[str, str]:
    """Digest of the last release of each run."""
    found = {}
    for run in sorted((folder(cwd) / "runs").iterdir()):
        shown = sao("releases", "--run", str(run), "--json", cwd=cwd)
        assert shown.returncode == 0, shown.stderr
        found[run.name] = json.loads(shown.stdout)["releases"][0]["digest"]
    return found


def test_the_same_arm_twice_is_bit_equal_and_not_separated(tmp_path: Path) -> None:
    """And a gate that does not hold ends with 1, after the report."""
    done = compare(tmp_path, "--arms", "sao", "sao", "--json", "--fail-under", "sao>1.5", *SMALL)
    assert done.returncode == 1
    assert "sao>1.5" in done.stderr
    assert (folder(tmp_path) / "report.json").is_file()
    digests = heads(tmp_path)
    assert digests["sao-seed0"] == digests["sao#2-seed0"] != digests["base-seed0"]
    scores = {label: [row["score"] for row in scored(tmp_path) if row["label"] == label] for label in ("sao", "sao#2")}
    assert scores["sao"] == scores["sao#2"]
    assert "not separated" in json.dumps(json.loads(done.stdout))


def test_killed_halfway_it_goes_on_to_the_same_report(tmp_path: Path) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    whole.mkdir()
    killed.mkdir()
    done = compare(whole, "--arms", "sao", *SMALL)
    assert done.returncode == 0, done.stderr
    for word in ("base", "sao", "separated", "report.md"):
        assert word in done.stdout
    played = attempts(whole)
    assert played["base"] == played["sao"]
    assert len(played["base"]) == 8

    process = subprocess.Popen(
        [*SAO, "compare", "--arms", "sao", *SMALL], cwd=killed, env=ENV, stdout=subprocess.DEVNULL
    )
    second = "runs/compare-*/runs/sao-seed0/metrics.jsonl"
    deadline = time.monotonic() + 200
    while not any(path.stat().st_size for path in killed.glob(second)):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    below = descendants(process.pid)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert not wait_gone(below)
    base = folder(killed) / "runs/base-seed0/result.json"
    made = base.stat().st_mtime_ns

    resumed = compare(killed, "--resume", str(folder(killed)))
    assert resumed.returncode == 0, resumed.stderr
    assert base.stat().st_mtime_ns == made
    assert report(killed) == report(whole)
    assert heads(killed) == heads(whole)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--arms", "soa"), "running_mean"),
        ((), "no arm was named"),
        (("--arms", "grpo_dis", "rollouts=50"), "50"),
        (("--arms", "grpo_dis", "conf=compare_stream"), "every prompt comes once"),
        (("--arms", "sao", "--fail-under", "sao>soa"), "soa"),
        (("--arms", "sao", "--sweep", "lr=1e-3"), "two values"),
        (("--resume", "runs/compare-1", "--arms", "sao"), "goes on with what was asked for"),
    ],
)
def test_refusals_name_the_way_out(tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
    done = compare(tmp_path, *arguments)
    assert done.returncode == 2
    assert said in done.stderr
    assert not (tmp_path / "runs").exists()


def test_interrupted_it_ends_what_it_started_and_says_how_to_go_on(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [*SAO, "compare", "--arms", "sao", *SMALL], cwd=tmp_path, env=ENV, stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 200
    while not list(tmp_path.glob("runs/compare-*/runs/base-seed0/attempts.jsonl")):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    below = descendants(process.pid)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert f"sao compare --resume {folder(tmp_path).relative_to(tmp_path)}" in said
    assert not wait_gone(below)
