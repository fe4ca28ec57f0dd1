"""Running the real command line in a folder of its own, as a newcomer would."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SAO = [sys.executable, "-m", "saocli.cli.app"]
ENV = os.environ | {"SAO_TOKEN": "", "SAO_URL": "", "NO_COLOR": "1", "OMP_WAIT_POLICY": "passive"}
THREADS = ("engine.threads=1", "trainer.threads=1")


def sao(
    *arguments: str, cwd: Path, timeout: float = 240, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run one command to its end."""
    return subprocess.run(
        [*SAO, *arguments], cwd=cwd, env=ENV | (env or {}), capture_output=True, text=True, timeout=timeout, check=False
    )


def events(output: str) -> list[dict[str, Any]]:
    """The JSON lines of `sao serve --json`."""
    return [json.loads(line) for line in output.splitlines()]


def steps(output: str) -> list[dict[str, Any]]:
    """The step records among them."""
    return [event for event in events(output) if event["event"] == "step"]


def chain(cwd: Path) -> list[dict[str, Any]]:
    """The release chain of the latest run, oldest first."""
    done = sao("releases", "--json", cwd=cwd)
    assert done.returncode == 0, done.stderr
    return list(reversed(json.loads(done.stdout)["releases"]))


def descendants(pid: int) -> set[int]:
    """Process ids of everything below `pid`."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        children.setdefault(int(fields[1]), []).append(int(stat.parent.name))
    found: set[int] = set()
    frontier = [pid]
    while frontier:
        for child in children.get(frontier.pop(), []):
            found.add(child)
            frontier.append(child)
    return found


def alive(pids: set[int]) -> set[int]:
    """Those that still run (zombies do not)."""
    left = set()
    for pid in pids:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if state != "Z":
            left.add(pid)
    return left


def wait_gone(pids: set[int], timeout: float = 10) -> set[int]:
    """What is left of them after at most `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while (left := alive(pids)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return left


@dataclass
class Served:
    """A live `sao serve`."""

    process: subprocess.Popen[str]
    cwd: Path
    url: str
    run: Path

    def sao(self, *arguments: str, **kwargs: Any) -> subprocess.CompletedProcess[str]:
        return sao(*arguments, cwd=self.cwd, **kwargs)


@contextmanager
def served(cwd: Path, *arguments: str, threads: Sequence[str] = THREADS) -> Iterator[Served]:
    """A service on a free port, healthy on entry and gone on exit."""
    process = subprocess.Popen(
        [*SAO, "serve", *arguments, "gateway.port=0", *threads],
        cwd=cwd,
        env=ENV,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        file = healthy(process, cwd)
        yield Served(process, cwd, json.loads(file.read_text())["url"], file.parent)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.communicate(timeout=60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()


def healthy(process: subprocess.Popen[str], cwd: Path) -> Path:
    """Wait until the service that `process` starts answers; returns its service.json."""
    deadline = time.monotonic() + 120
    # A killed service leaves its file behind.
    while not (files := [one for one in cwd.glob("runs/*-*/service.json") if _pid(one) == process.pid]):
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline, "not healthy after 120 s"
        time.sleep(0.1)
    return files[0]


def _pid(service: Path) -> int | None:
    try:
        return int(json.loads(service.read_text())["pid"])
    except OSError:  # removed meanwhile
        return None
