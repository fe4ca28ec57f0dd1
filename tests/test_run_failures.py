"""What a person sees when a part fails: the cause, the log, the right exit code, and no process left behind."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import time
from pathlib import Path

import httpx
import pytest
from runkit import ENV, SAO, THREADS, alive, descendants, healthy, sao, served, wait_gone

pytestmark = pytest.mark.slow

SMOKE = ("serve", "conf=cpu_smoke", *THREADS)


def test_a_port_in_use_is_refused_before_anything_starts(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        started = time.monotonic()
        done = sao(*SMOKE, f"gateway.port={port}", cwd=tmp_path)
    assert done.returncode == 5
    assert str(port) in done.stderr
    assert "gateway.port" in done.stderr
    assert not (tmp_path / "runs").exists()
    assert time.monotonic() - started < 10


def test_an_unreadable_model_folder_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    done = sao(*SMOKE, "gateway.port=0", f"model.path={folder}", cwd=tmp_path)
    assert done.returncode == 2
    assert str(folder) in done.stderr


@pytest.mark.parametrize(("part", "log"), [("engine", "engine.log"), ("trainer", "trainer.log")])
def test_a_part_that_dies_at_start_shows_its_log(tmp_path: Path, part: str, log: str) -> None:
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho no such accelerator >&2\nexit 3\n")
    broken.chmod(broken.stat().st_mode | stat.S_IXUSR)
    done = sao(*SMOKE, "gateway.port=0", f"{part}.python={broken}", cwd=tmp_path)
    assert done.returncode == 1
    assert part in done.stderr
    assert "ended with status 3" in done.stderr
    assert "no such accelerator" in done.stderr
    assert log in done.stderr


@pytest.mark.parametrize("part", ["trainer", "embedded engine"])
def test_a_part_killed_while_serving_ends_the_run_loudly(tmp_path: Path, part: str) -> None:
    with served(tmp_path, "conf=cpu_smoke", "engine.restarts=0", "trainer.restarts=0") as running:
        below = descendants(running.process.pid)
        pid = json.loads(running.sao("status", "--json").stdout)["processes"][part]["pid"]
        receipt = json.loads(running.sao("attempt", "--prompt", "x", "--json").stdout)["receipt"]
        os.kill(pid, signal.SIGKILL)
        output = running.process.communicate(timeout=30)[0]
        assert running.process.returncode == 1
        assert f"the {part} was killed by SIGKILL" in output
        assert ".log" in output
        assert wait_gone(below) == set()
        # What was recorded is still there to read.
        assert sao("releases", "--json", cwd=tmp_path).returncode == 0
        assert receipt


def test_a_rank_killed_in_mid_step_leaves_the_report_on_disk(tmp_path: Path) -> None:
    with served(tmp_path, "conf=cpu_smoke", "trainer.restarts=0") as running:
        below = descendants(running.process.pid)
        worker = next(
            pid
            for pid in below
            if b"trainer.megatron.worker" in Path(f"/proc/{pid}/cmdline").read_bytes() and descendants(pid) == set()
        )
        receipt = json.loads(running.sao("attempt", "--prompt", "x", "--json").stdout)["receipt"]
        os.kill(worker, signal.SIGSTOP)
        accepted = running.sao("report", receipt, "--score", "1")
        assert accepted.returncode == 0
        time.sleep(0.5)
        os.kill(worker, signal.SIGKILL)
        output = running.process.communicate(timeout=60)[0]
        assert running.process.returncode == 1
        assert "the trainer" in output
        assert "doing step 1" in output
        assert wait_gone(below) == set()
    listed = json.loads(sao("releases", "--json", cwd=tmp_path).stdout)["releases"]
    assert [entry["operation"] for entry in listed] == ["base"]


def test_the_service_killed_leaves_no_orphan(tmp_path: Path) -> None:
    with served(tmp_path, "conf=cpu_smoke") as running:
        below = descendants(running.process.pid)
        running.process.kill()
        running.process.wait()
        assert wait_gone(below) == set()
        assert alive(below) == set()


def test_the_service_killed_while_its_parts_import_leaves_no_orphan(tmp_path: Path) -> None:
    process = subprocess.Popen([*SAO, *SMOKE, "gateway.port=0"], cwd=tmp_path, env=ENV, stdout=subprocess.DEVNULL)
    try:
        while len(below := descendants(process.pid)) < len(["engine", "launcher", "rank"]):
            assert process.poll() is None
            time.sleep(0.01)
    finally:
        process.kill()
        process.wait()
    started = time.monotonic()
    assert wait_gone(below) == set()
    assert time.monotonic() - started < 1.5  # their imports go on for longer than that


def test_a_full_disk_stops_the_run_and_names_the_folder(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(disk)], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip("mounting a small disk needs privileges")
    try:
        done = sao(*SMOKE, "--drive", "gateway.port=0", "trainer.critic_warmup_steps=0", cwd=disk)
        assert done.returncode == 1
        assert "No space left on device" in done.stderr
        assert "releases/" in done.stderr
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


def test_clients_without_a_service_exit_3(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    for command in (
        ["status"],
        ["releases"],
        ["report", "x", "--score", "1"],
        ["attempt", "--prompt", "x"],
    ):
        done = sao(*command, "--url", url, cwd=tmp_path)
        assert done.returncode == 3, (command, done.stderr)
        assert url in done.stderr


def test_ctrl_c_trains_what_is_queued_then_exits_130(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [*SAO, *SMOKE, "gateway.port=0"],
        cwd=tmp_path,
        env=ENV,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    url = json.loads(healthy(process, tmp_path).read_text())["url"]
    assert httpx.get(f"{url}/healthz").json() == {"ok": True}
    receipt = json.loads(sao("attempt", "--prompt", "x", "--json", cwd=tmp_path).stdout)["receipt"]
    assert sao("report", receipt, "--score", "1", cwd=tmp_path).returncode == 0
    process.send_signal(signal.SIGINT)
    output = process.communicate(timeout=60)[0]
    assert process.returncode == 130
    assert "1 rollouts trained · 0 queued on disk" in output
