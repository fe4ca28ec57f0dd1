"""A run that was killed goes on as if nothing had happened: each report trained once, every bit equal."""

from __future__ import annotations

import json
import os
import sqlite3
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from crashkit import crashed
from runkit import THREADS, chain, sao

pytestmark = pytest.mark.slow

STEPS = 6
CONF = ("conf=cpu_smoke", "trainer.critic_warmup_steps=0", "trainer.lr_decay=linear", "trainer.lr_decay_steps=20")
# What no clock has a part in.
COMPUTED = ("pg_loss", "actor/grad_norm", "critic/loss", "critic/grad_norm", "critic/explained_variance_rolling")


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run without an interruption."""
    cwd = tmp_path_factory.mktemp("straight")
    done = sao("serve", *CONF, "--drive", "--steps", str(STEPS), "gateway.port=0", *THREADS, cwd=cwd)
    assert done.returncode == 0, done.stderr
    return cwd


def records(cwd: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (cwd / "runs/latest/metrics.jsonl").read_text().splitlines()]


def state(cwd: Path) -> dict[str, bytes]:
    """Every file of the head's trainer state but the indexes, which hold paths."""
    folder = cwd / "runs/latest/releases" / f"{STEPS:06d}" / "state"
    files = (file for file in folder.rglob("*") if file.is_file() and file.name != ".metadata")
    found = {str(file.relative_to(folder)): file.read_bytes() for file in files}
    assert any(name.endswith(".distcp") for name in found)
    return found


def trained(cwd: Path) -> list[tuple[int, str]]:
    """Step and receipt of every trained report."""
    with sqlite3.connect(cwd / "runs/latest/records.db") as db:
        query = (
            "SELECT step, receipt FROM reports JOIN report_references ON report = id WHERE state = 'trained' "
            "ORDER BY step"
        )
        return db.execute(query).fetchall()


def attempts(cwd: Path) -> list[tuple[Any, ...]]:
    """What became of each, in order."""
    lines = [json.loads(line) for line in (cwd / "runs/latest/attempts.jsonl").read_text().splitlines()]
    names = ("problem", "number", "state", "score", "step", "release_id", "completion_tokens", "finish_reason", "task")
    return [tuple(line[name] for name in names) for line in lines]


def check_equal(cwd: Path, straight: Path) -> None:
    releases = chain(cwd)
    assert [entry["release_id"] for entry in releases] == [f"sao-smoke@{step}" for step in range(STEPS + 1)]
    assert [entry["digest"] for entry in releases] == [entry["digest"] for entry in chain(straight)]
    assert len({entry["digest"] for entry in releases}) == STEPS + 1, "each step moved the weights"
    assert [record["step"] for record in records(cwd)] == list(range(1, STEPS + 1))
    for name in COMPUTED:
        assert [record[name] for record in records(cwd)] == [record[name] for record in records(straight)], name
    assert state(cwd) == state(straight)
    assert [step for step, _ in trained(cwd)] == list(range(1, STEPS + 1))
    assert max(Counter(receipt for _, receipt in trained(cwd)).values()) == 1
    with sqlite3.connect(cwd / "runs/latest/records.db") as db:
        assert db.execute("SELECT count(*) FROM reports WHERE state != 'trained'").fetchone()[0] == 0
    assert attempts(cwd) == attempts(straight)
    assert len(attempts(cwd)) == STEPS


def halve(folder: Path, pattern: str) -> None:
    """Cut the largest such file in two, as a power cut may."""
    largest = max(folder.rglob(pattern), key=lambda file: file.stat().st_size)
    os.truncate(largest, largest.stat().st_size // 2)


@pytest.mark.parametrize(
    ("point", "every", "damaged", "replayed"),
    [
        # Trained, and nothing of it on disk; the weights that served are damaged besides.
        ("stepped@4", 100, ("000003/weights", "*.safetensors"), "replayed 3 steps from the base model"),
        # Served, and not committed.
        ("loaded@4", 2, None, "replayed 1 step from the state of sao-smoke@2"),
        # The newest state is damaged, which shows when half of it is loaded.
        ("taken@4", 2, ("000002/state/critic", "*.distcp"), "replayed 3 steps from the base model"),
        # Committed, and not written down: the step is made again for its record.
        ("committed@3", 1, None, "replayed 1 step from the state of sao-smoke@2"),
    ],
)
def test_three_steps_a_kill_and_three_more_are_six(
    straight: Path, tmp_path: Path, point: str, every: int, damaged: tuple[str, str] | None, replayed: str
) -> None:
    killed = crashed(tmp_path, "service", point, *CONF, f"releases.checkpoint_every={every}", steps=STEPS)
    assert killed.returncode == -9, killed.stderr
    assert chain(tmp_path)[-1]["release_id"] == "sao-smoke@3"
    if damaged:
        halve(tmp_path / "runs/latest/releases" / damaged[0], damaged[1])
    done = sao("serve", "--resume", "latest", "--drive", "--steps", str(STEPS), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert f"{replayed}, digest equal" in done.stdout
    check_equal(tmp_path, straight)
    assert records(tmp_path)[3]["replay/digest_equal"] == 1.0


def test_a_trainer_killed_in_mid_step_is_started_again(straight: Path, tmp_path: Path) -> None:
    done = crashed(tmp_path, "trainer", "taken@4", *CONF, "releases.checkpoint_every=2", steps=STEPS)
    assert done.returncode == 0, done.stderr
    assert "while doing step 4: starting it again (1 of 3 in a row)" in done.stdout
    assert "replayed 1 step from the state of sao-smoke@2, digest equal" in done.stdout
    check_equal(tmp_path, straight)
