"""A live service is rolled back, killed, and gone on with; and what cannot be gone on with says why."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from runkit import Served, chain, descendants, sao, served, wait_gone

pytestmark = pytest.mark.slow

CONF = ("conf=cpu_smoke", "trainer.critic_warmup_steps=0", "releases.checkpoint_every=2")
BEARER = {"Authorization": "Bearer reef-local"}


def attempt(service: Served, *more: str) -> list[dict[str, Any]]:
    done = service.sao("attempt", "tasks.count=1", "--json", *more)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def greedy(service: Served) -> tuple[str, str]:
    """What the weights that serve say, and which they are."""
    body = {"model": "tiny", "prompt": "abc", "max_tokens": 24, "temperature": 0, "logprobs": 1}
    answer = httpx.post(f"{service.url}/v1/completions", headers=BEARER, json=body, timeout=60)
    choice = answer.json()["choices"][0]
    return json.dumps([choice["text"], choice["logprobs"]]), answer.headers["x-reef-weight-version"]


def killed(service: Served) -> None:
    below = descendants(service.process.pid)
    service.process.send_signal(signal.SIGKILL)
    service.process.wait()
    assert wait_gone(below) == set()


def test_rolled_back_then_killed_then_gone_on_with(tmp_path: Path) -> None:
    with served(tmp_path, *CONF) as service:
        attempt(service, "-n", "1")
        said, version = greedy(service)
        assert version == "sao-smoke@1"
        attempt(service, "-n", "2")
        assert greedy(service)[0] != said
        stale = json.loads(service.sao("attempt", "--prompt", "abc", "--json").stdout)["receipt"]

        refused = service.sao("releases", "rollback", "sao-smoke@7")
        assert refused.returncode == 4
        assert "the newest are: sao-smoke@3, sao-smoke@2" in refused.stderr
        conflict = service.sao("releases", "rollback", "sao-smoke@3")
        assert conflict.returncode == 4
        assert "is the head already" in conflict.stderr

        done = service.sao("releases", "rollback", "sao-smoke@1", "--json")
        assert done.returncode == 0, done.stderr
        head = json.loads(done.stdout)
        assert (head["release_id"], head["operation"], head["current"]) == ("sao-smoke@4", "rollback", True)
        assert head["digest"] == chain(tmp_path)[1]["digest"]
        assert greedy(service) == (said, "sao-smoke@4")
        old = json.loads(service.sao("report", stale, "--score", "1", "--json").stdout)
        assert old["trains"], "whether its lineage still stands is judged when a step would take it"
        (one,) = attempt(service, "-n", "1")
        assert (one["state"], one["step"]) == ("trained", 5)
        assert json.loads(service.sao("status", "--json").stdout)["drops"] == {"lineage": 1}
        said_last, _ = greedy(service)
        killed(service)

    with served(tmp_path, "--resume", service.run.name, threads=()) as again:
        assert greedy(again) == (said_last, "sao-smoke@5")
        second = again.sao("serve", "--resume", "latest")
        assert second.returncode == 1
        assert "is in use by another sao" in second.stderr
        (one,) = attempt(again, "-n", "1")
        assert (one["state"], one["step"]) == ("trained", 6)
        again.process.send_signal(signal.SIGTERM)
        output = again.process.communicate(timeout=60)[0]
    assert "replayed 1 step from the state of sao-smoke@4, digest equal" in output
    releases = chain(tmp_path)
    assert [entry["operation"] for entry in releases] == [
        "base",
        *["training"] * 3,
        "rollback",
        *["training"] * 2,
    ]
    assert [entry["parent_release_id"] for entry in releases[1:]] == [entry["release_id"] for entry in releases[:-1]]
    lines = [json.loads(line) for line in (again.run / "metrics.jsonl").read_text().splitlines()]
    assert [(line["step"], line["operation"]) for line in lines][3] == (4, "rollback")

    check_refusals(tmp_path, again.run)


def check_refusals(cwd: Path, run: Path) -> None:
    """Each leaves the run as it was."""
    for token, said in (
        ("trainer.actor_lr=1", "trainer.actor_lr cannot be changed with --resume"),
        ("seed=1", "seed cannot be changed"),
        ("conf=cpu_smoke", "conf=cpu_smoke was given with --resume"),
    ):
        refused = sao("serve", "--resume", "latest", token, cwd=cwd)
        assert refused.returncode == 2
        assert said in refused.stderr
    missing = sao("serve", "--resume", "nothing", cwd=cwd)
    assert missing.returncode == 1
    assert "is not a run directory" in missing.stderr

    before = sorted(file.name for file in (run / "releases").rglob("*"))
    mounted = subprocess.run(["mount", "--bind", "-o", "ro", str(run), str(run)], capture_output=True, check=False)
    if mounted.returncode == 0:
        subprocess.run(["mount", "-o", "remount,ro,bind", str(run)], check=True)
        try:
            readonly = sao("serve", "--resume", "latest", "gateway.port=0", cwd=cwd)
            assert readonly.returncode == 1
            assert "Read-only file system" in readonly.stderr
            assert "writable" in readonly.stderr
        finally:
            subprocess.run(["umount", str(run)], check=True)

    whole = (run / "records.db").read_bytes()
    with (run / "records.db").open("r+b") as file:
        file.seek(len(whole) // 2 // 4096 * 4096)
        file.write(b"\xff" * 4096)
    damaged = sao("serve", "--resume", "latest", "gateway.port=0", cwd=cwd)
    assert damaged.returncode == 1
    assert "records.db" in damaged.stderr
    assert "restore records.db from a copy" in damaged.stderr
    assert sorted(file.name for file in (run / "releases").rglob("*")) == before


def test_steps_refused_in_a_row_roll_the_run_back(tmp_path: Path) -> None:
    guard = ("trainer.guard.actor_grad_norm=1e-9", "trainer.guard.rollback_after=2")
    with served(tmp_path, *CONF, *guard) as service:
        assert [entry["state"] for entry in attempt(service, "-n", "2")] == ["trained"] * 2
        deadline = time.monotonic() + 20
        while len(chain(tmp_path)) < 4:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert [entry["state"] for entry in attempt(service, "-n", "1")] == ["trained"]
        service.process.send_signal(signal.SIGTERM)
        output = service.process.communicate(timeout=60)[0]
        assert service.process.returncode == 0
    assert "2 steps in a row were refused: rolling back to before step 1" in output
    entries = chain(tmp_path)
    assert [entry["operation"] for entry in entries] == ["base", "noop", "noop", "rollback", "noop"]
    assert len({entry["digest"] for entry in entries}) == 1  # what was refused changed nothing
