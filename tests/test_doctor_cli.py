"""`sao doctor` as typed: exit codes, JSON, columns in a pipe and on a terminal."""

from __future__ import annotations

import json
import os
import pty
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from saocli.store.run import RunDirectory

SAO = [sys.executable, "-m", "saocli.cli.app", "doctor"]


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def doctor(*arguments: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    own = {"CUDA_VISIBLE_DEVICES": "", "SAO_CACHE": str(cwd / "cache")}
    return subprocess.run(
        [*SAO, *arguments], cwd=cwd, env=os.environ | own | env, capture_output=True, text=True, check=False
    )


@pytest.fixture
def smoke() -> tuple[str, ...]:
    return "conf=cpu_smoke", f"gateway.port={free_port()}"


def test_all_is_well(smoke: tuple[str, ...], tmp_path: Path) -> None:
    done = doctor(*smoke, cwd=tmp_path)
    assert done.returncode == 0, done.stdout
    lines = done.stdout.splitlines()
    assert lines[0].endswith("doctor · cpu_smoke")
    assert lines[-1] == "all is well"
    rows = [line for line in lines if line[2:3] in ("✓", "–")]
    assert {row[5:].split("  ")[0] for row in rows} > {"conf", "python", "torch", "model", "memory", "disk", "port"}
    # Columns stand in one line: what is found begins where all begin.
    start = len("  ✓  ") + max(len(row[5:].split("  ")[0]) for row in rows) + 2
    assert all(row[start - 2 : start] == "  " and row[start] != " " for row in rows)
    assert "\x1b" not in done.stdout
    assert not any(line != line.rstrip() for line in lines)
    assert any("activations" in line and "256 tokens" in line for line in lines)


def test_a_miss_exits_5_with_its_fix(smoke: tuple[str, ...], tmp_path: Path) -> None:
    done = doctor(*smoke, "trainer.python=/nope", "context_length=2000", cwd=tmp_path)
    assert done.returncode == 5
    lines = done.stdout.splitlines()
    assert lines[-1] == "2 missing: trainer.python, context"
    for what, fix in (("trainer.python", "name an interpreter"), ("context", "context_length=1024")):
        place = next(i for i, line in enumerate(lines) if line.startswith(f"  ✗  {what} "))
        assert lines[place + 1].strip().startswith(f"→ {fix}")


def test_as_json(smoke: tuple[str, ...], tmp_path: Path) -> None:
    done = doctor(*smoke, "--json", cwd=tmp_path)
    answer = json.loads(done.stdout)
    assert (done.returncode, done.stderr, answer["ok"]) == (0, "", True)
    assert (answer["conf"], answer["profile"]) == ("cpu_smoke", "cpu")
    assert {"mark", "what", "found", "needed", "fix"} == set(answer["checks"][0])
    plan = answer["estimate"]
    parts = sum(part["bytes"] for one in plan["footprints"] for part in one["parts"])
    assert plan["ram_bytes"] == parts


def test_without_a_conf_every_conf_has_a_line(tmp_path: Path) -> None:
    done = doctor("--json", cwd=tmp_path)
    answer = json.loads(done.stdout)
    misses = {one["what"] for one in answer["checks"] if one["mark"] == "missing"}
    assert misses <= {"port"}, misses
    assert done.returncode == (5 if misses else 0)
    assert {"arith", "cpu_smoke", "imo_smoke", "letters"} <= {one["what"] for one in answer["confs"]}


@pytest.mark.parametrize("arguments", [("conf=cpu_smoek",), ("seed=1",), ("cpu_smoke",), ("conf=cpu_smoke", "sed=1")])
def test_wrong_usage_exits_2(arguments: tuple[str, ...], tmp_path: Path) -> None:
    done = doctor(*arguments, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")


def test_a_run_by_its_name(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "runs", "x")
    run.write_config("name: x\n", [])
    done = doctor("--run", run.path.name, cwd=tmp_path)
    assert done.returncode == 5
    assert "✗  database" in done.stdout
    assert "1 missing: database" in done.stdout
    assert doctor("--run", "nowhere", cwd=tmp_path).returncode == 1


def on_terminal(*arguments: str, cwd: Path, columns: int, **env: str) -> str:
    """What a terminal of that width is sent."""
    ours, theirs = pty.openpty()
    own = {"CUDA_VISIBLE_DEVICES": "", "COLUMNS": str(columns), "TERM": "xterm-256color", "SAO_CACHE": str(cwd / "c")}
    process = subprocess.Popen([*SAO, *arguments], cwd=cwd, env=os.environ | own | env, stdout=theirs, stderr=theirs)
    os.close(theirs)
    sent = b""
    while True:
        try:
            block = os.read(ours, 65536)
        except OSError:
            break
        if not block:
            break
        sent += block
    os.close(ours)
    process.wait()
    return sent.decode()


def test_on_a_terminal_nothing_is_wider_than_it(smoke: tuple[str, ...], tmp_path: Path) -> None:
    shown = on_terminal(*smoke, "trainer.python=/nope", cwd=tmp_path, columns=90, NO_COLOR="1")
    table = re.sub(r"\x1b\[[0-9;]*m", "", shown).split("memory at full context")[0].splitlines()
    assert all(len(line.rstrip()) <= 90 for line in table), max(table, key=len)
    assert any("→ name an interpreter" in line for line in table)


def test_colours_are_a_terminal_s_unless_refused(smoke: tuple[str, ...], tmp_path: Path) -> None:
    env = {key: os.environ.pop(key) for key in ("NO_COLOR",) if key in os.environ}
    try:
        assert "\x1b[32m✓" in on_terminal(*smoke, cwd=tmp_path, columns=120).replace("  ✓", "✓")
    finally:
        os.environ.update(env)
    assert "\x1b[3" not in on_terminal(*smoke, cwd=tmp_path, columns=120, NO_COLOR="1")


def test_no_torch_is_loaded(smoke: tuple[str, ...], tmp_path: Path) -> None:
    code = (
        "import sys\nfrom saocli.cli.app import main\n"
        f"sys.argv = ['sao', 'doctor', *{list(smoke)!r}]\n"
        "try: main()\nexcept SystemExit as end: assert not end.code, end.code\n"
        "print([name for name in ('torch', 'megatron') if name in sys.modules])"
    )
    env = os.environ | {"CUDA_VISIBLE_DEVICES": "", "SAO_CACHE": str(tmp_path / "cache")}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[-1] == "[]", done.stdout + done.stderr
