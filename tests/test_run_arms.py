"""Each kind of arm through the whole stack, and what a driven run leaves on disk."""

from __future__ import annotations

import json
import signal
import subprocess
from collections import Counter
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from runkit import ENV, SAO, THREADS, chain, events, sao

from saocli.driver import Attempt
from saocli.store.run import RunDirectory

pytestmark = pytest.mark.slow

DRIVE = ("serve", "conf=cpu_smoke", "--drive", "--json", "gateway.port=0", *THREADS)
GROUPS = ("arm=grpo_dis", "batch_size=4", "trainer.global_batch_size=4", "tasks.attempts=4", "tasks.concurrency=4")


def driven(cwd: Path, *overrides: str) -> tuple[list[dict[str, Any]], RunDirectory]:
    """A finished run: its JSON lines and its directory."""
    cwd.mkdir(exist_ok=True)
    done = sao(*DRIVE, *overrides, cwd=cwd)
    assert done.returncode == 0, done.stderr
    return events(done.stdout), RunDirectory.open(cwd / "runs" / "latest")


def finished(directory: RunDirectory) -> dict[str, Any]:
    result = directory.result()
    assert result is not None
    return result


def test_a_grouped_arm_takes_one_prompt_a_step(tmp_path: Path) -> None:
    _, directory = driven(tmp_path, *GROUPS, "tasks.eval.samples=4", "tasks.eval.at=[0,-1]", "tasks.eval.greedy=true")
    releases = chain(tmp_path)
    assert len(releases) == 4
    assert {entry["operation"] for entry in releases[1:]} <= {"training", "noop"}
    assert {entry["arm"] for entry in releases} == {"grpo_dis"}
    attempts = directory.attempts()
    problem_of = {attempt["receipt"]: attempt["problem"] for attempt in attempts}
    for entry in releases[1:]:
        assert len(entry["receipts"]) == 4
        assert len({problem_of[receipt] for receipt in entry["receipts"]}) == 1
    assert Counter(attempt["step"] for attempt in attempts) == {1: 4, 2: 4, 3: 4}
    assert [(one["step"], one["temperature"]) for one in directory.evaluations()] == [(0, 1), (0, 0), (3, 1), (3, 0)]


def test_the_running_mean_trains_one_rollout_a_step(tmp_path: Path) -> None:
    output, directory = driven(
        tmp_path, "arm=running_mean", "tasks.count=2", "tasks.attempts=4", "trainer.actor_lr=1e-3"
    )
    assert [event["step"] for event in output if event["event"] == "step"] == list(range(1, 9))
    attempts = directory.attempts()
    assert len(attempts) == 8
    seen: dict[str, list[float]] = {}
    everything: list[float] = []
    for attempt, release in zip(attempts, chain(tmp_path)[1:], strict=True):
        earlier = seen.setdefault(attempt["problem"], []) or everything
        # With a baseline that the score equals, or with none, there is nothing to learn.
        idle = not earlier or attempt["score"] == sum(earlier) / len(earlier)
        assert release["operation"] == ("noop" if idle else "training")
        seen[attempt["problem"]].append(attempt["score"])
        everything.append(attempt["score"])
    assert any(release["operation"] == "training" for release in chain(tmp_path))


def test_the_base_trains_nothing_and_names_the_weights_that_others_start_from(tmp_path: Path) -> None:
    output, base = driven(tmp_path / "base", "arm=base", "tasks.count=2", "tasks.attempts=3", "tasks.concurrency=3")
    (only,) = chain(tmp_path / "base")
    assert (only["operation"], only["current"]) == ("base", True)
    attempts = base.attempts()
    assert [(one["state"], one["reason"]) for one in attempts] == [("recorded", "untrained_arm")] * 6
    result = finished(base)
    assert (result["head"], result["trained"], result["dropped"]) == (only["release_id"], 0, {"untrained_arm": 6})
    assert [event["what"] for event in output if event.get("name") == "trainer"] == ["none (arm base)"]
    assert not base.metrics_jsonl.exists()

    _, trained = driven(tmp_path / "sao", "tasks.count=1", "tasks.attempts=1")
    first = chain(tmp_path / "sao")[0]
    assert finished(trained)["base_digest"] == first["digest"] == only["digest"] == result["base_digest"]


def test_slots_train_everything_though_rollouts_grow_old(tmp_path: Path) -> None:
    output, directory = driven(
        tmp_path,
        "tasks.pacing=slots",
        "tasks.concurrency=6",
        "max_staleness=17",
        "trainer.critic_warmup_steps=0",
        "tasks.feedback_s=0.2",
        "tasks.feedback_sigma=1.0",
    )
    records = [event for event in output if event["event"] == "step"]
    assert len(records) == 18
    lags = [record["sao/policy_lag_max"] for record in records]
    assert min(lags) >= 0
    assert max(lags) > 0
    assert {attempt["state"] for attempt in directory.attempts()} == {"trained"}


def test_without_pacing_attempts_are_written_down_as_they_ended(tmp_path: Path) -> None:
    _, directory = driven(
        tmp_path,
        "tasks.pacing=none",
        "tasks.concurrency=6",
        "tasks.count=2",
        "tasks.attempts=4",
        "trainer.critic_warmup_steps=0",
        "tasks.eval.samples=2",
        "tasks.eval.at=[-1]",
    )
    attempts, result = directory.attempts(), finished(directory)
    states = Counter(attempt["state"] for attempt in attempts)
    assert states["queued"] == 0
    assert (states["trained"], states["dropped"]) == (result["trained"], result["dropped"].get("stale", 0))
    assert states["dropped"] > 0, "with max_staleness=0 what waits behind the first step is too old"
    assert [one["step"] for one in directory.evaluations()] == [result["trained"]]


def test_the_result_is_written_last(tmp_path: Path) -> None:
    output, directory = driven(tmp_path, "tasks.attempts=2", "--steps", "3")
    result = finished(directory)
    (end,) = [event for event in output if event["event"] == "end"]
    assert {key: end[key] for key in result} == result
    assert result["trained"] == 3
    assert min(result["start_s"], result["play_s"]) > 0
    assert all(path.stat().st_mtime <= directory.result_json.stat().st_mtime for path in directory.path.iterdir())
    line = json.loads(directory.attempts_jsonl.read_text().splitlines()[0])
    assert list(line) == [field.name for field in fields(Attempt) if field.name != "text"]
    assert [attempt["state"] for attempt in directory.attempts()][:3] == ["trained"] * 3
    at = [attempt["at_s"] for attempt in directory.attempts()]
    assert 0 < at[0] < at[1] < at[2] < result["play_s"]


def test_an_interrupted_run_has_no_result(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [*SAO, *DRIVE, "tasks.count=400"],
        cwd=tmp_path,
        env=ENV,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    while json.loads(process.stdout.readline())["event"] != "step":
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 130, errors
    directory = RunDirectory.open(tmp_path / "runs" / "latest")
    assert directory.result() is None
    trained = events(output)[-1]["trained"]
    assert sum(attempt["state"] == "trained" for attempt in directory.attempts()) == trained > 0
