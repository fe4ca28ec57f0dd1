"""The run directory."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from saocli.errors import StoreError
from saocli.store.run import RunDirectory, live_runs


def test_runs_of_one_minute_get_numbers_and_latest_follows(tmp_path: Path) -> None:
    first, second, third = (RunDirectory.create(tmp_path / "runs", "imo") for _ in range(3))
    assert re.fullmatch(r"imo-\d{4}-\d{4}", first.path.name)
    assert re.fullmatch(r"imo-\d{4}-\d{4}(-2)?", second.path.name)
    assert len({first.path, second.path, third.path}) == 3
    assert (tmp_path / "runs" / "latest").resolve() == third.path.resolve()
    assert os.readlink(tmp_path / "runs" / "latest") == third.path.name, "the folder can be moved"
    assert third.logs.is_dir()


def test_a_comparison_s_folder_has_none_of_a_run_s(tmp_path: Path) -> None:
    run, comparison = RunDirectory.create(tmp_path, "smoke"), RunDirectory.reserve(tmp_path, "compare")
    assert sorted(path.name for path in run.path.iterdir()) == ["logs", "releases"]
    assert list(comparison.path.iterdir()) == []
    assert (tmp_path / "latest").resolve() == comparison.path.resolve()


def test_files_come_back_and_the_token_is_private(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path, "a")
    run.write_config("name: a\n", ["seed=1", "arm=sao"])
    run.write_environment({"python": "3.11"})
    run.write_token("secret")
    assert run.config_yaml.read_text() == "name: a\n"
    assert run.overrides.read_text() == "seed=1\narm=sao\n"
    assert run.token_file.stat().st_mode & 0o777 == 0o600
    assert run.token() == "secret"
    assert RunDirectory.open(tmp_path / "latest").path == run.path.resolve()
    assert not list(run.path.glob(".[a-z]*.*")), "no partial file stays"


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="not a run directory"):
        RunDirectory.open(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(StoreError) as refused:
        RunDirectory.create(tmp_path / "file" / "runs", "a")
    assert refused.value.fix


def test_two_processes_cannot_hold_one_run(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path, "a")
    try_it = f"""
from pathlib import Path
from saocli.store.run import RunDirectory
with RunDirectory(Path({str(run.path)!r})).lock():
    pass
"""
    with run.lock():
        with pytest.raises(StoreError, match="in use by another sao"), run.lock():
            pass
        other = subprocess.run([sys.executable, "-c", try_it], capture_output=True, text=True, check=False)
        assert "in use by another sao" in other.stderr
    assert subprocess.run([sys.executable, "-c", try_it], check=False).returncode == 0


def test_live_runs_are_those_whose_process_lives_newest_first(tmp_path: Path) -> None:
    old, dead, new, broken = (RunDirectory.create(tmp_path, name) for name in ("old", "dead", "new", "broken"))
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    for run, pid, at in ((old, os.getpid(), 1.0), (dead, ended.pid, 2.0), (new, os.getpid(), 3.0)):
        run.write_service(url="http://127.0.0.1:1", pid=pid, scenario="s", started_at=at)
    broken.service_json.write_text("{")
    assert [run.path.name for run in live_runs(tmp_path)] == [new.path.name, old.path.name]
    assert live_runs(tmp_path)[0].service()["url"] == "http://127.0.0.1:1"
    new.remove_service()
    new.remove_service()
    assert [run.path for run in live_runs(tmp_path)] == [old.path]
    assert live_runs(tmp_path / "nothing") == []


def test_a_driven_run_is_over_once_its_result_is_there(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path, "a")
    assert (run.attempts(), run.evaluations(), run.result()) == ([], [], None)
    run.attempts_jsonl.write_text('{"problem": "ä"}\n{"problem": "b"}\n{"probl', encoding="utf-8")
    assert [attempt["problem"] for attempt in run.attempts()] == ["ä", "b"], "half a line is none"
    run.write_result({"head": "s@3", "dropped": {"stale": 1}})
    assert run.result() == {"head": "s@3", "dropped": {"stale": 1}}
    with pytest.raises(ValueError, match="JSON"):
        run.write_result({"head": float("nan")})
    assert run.result() == {"head": "s@3", "dropped": {"stale": 1}}
