"""Every command in the README runs, and what it shows of refusals is what comes out."""

from __future__ import annotations

import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from runkit import ENV, SAO, sao

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
SHELL = [block.strip() for block in re.findall(r"^```sh\n(.*?)^```", README, re.S | re.M)]
LEARNING = ("conf=imo_smoke", "conf=arith", "conf=arith_batch4", "conf=letters")


def block(containing: str) -> str:
    (found,) = [text for text in SHELL if containing in text]
    return found


def bash(script: str, cwd: Path, timeout: float = 250) -> subprocess.CompletedProcess[str]:
    """Run a block as it stands, stopping at the first failure; `sao` and `python` are this environment's."""
    home = Path(sys.executable).parent
    env = {**ENV, "PATH": f"{home}:{ENV['PATH']}"}
    return subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=cwd,
        env=env,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


@pytest.mark.slow
def test_the_tour_runs_as_written(tmp_path: Path) -> None:
    tour = block("--detach")
    client = re.search(r"^```python\n(.*?)^```", README, re.S | re.M)
    assert client is not None
    # The Python client needs the service up: it goes in before the line that stops it.
    done = bash(tour.replace("sao stop", f"python -c {shlex.quote(client[1])}\nsao stop"), tmp_path)
    assert done.returncode == 0, done.stderr
    assert '"operation":"training"' in done.stdout
    assert "trained  sao-smoke@1" in done.stdout
    assert (tmp_path / "exported" / "model.safetensors").exists()


@pytest.mark.slow
@pytest.mark.smollm2
@pytest.mark.timeout(900)
def test_each_long_run_starts_and_trains(tmp_path: Path) -> None:
    """The README's long runs, cut to their first step and without the evaluation; SmolLM2 is loaded for one of them."""
    runs = [line for text in SHELL for line in text.splitlines() if line.startswith("sao serve conf=")]
    runs = [line for line in runs if "--drive" in line]
    assert len(runs) >= 4
    for line in runs:
        assert any(name in line for name in (*LEARNING, "conf=cpu_smoke"))
        short = f"{line} --steps 1 tasks.eval.samples=0 gateway.port=0"
        short += "" if "imo_smoke" in line else " model=tiny"
        done = bash(short, tmp_path)
        assert done.returncode == 0, (line, done.stderr)
        shutil.rmtree(tmp_path / "runs")  # 4 GB of weights and trainer state each


@pytest.mark.slow
def test_a_stopped_run_goes_on_as_written(tmp_path: Path) -> None:
    done = sao("serve", "conf=cpu_smoke", "--drive", "--steps", "2", "gateway.port=0", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    resumed = bash(block("--resume latest"), tmp_path)
    assert resumed.returncode == 0, resumed.stderr
    assert "18 rollouts trained" in resumed.stdout


@pytest.mark.slow
def test_the_comparison_runs_as_written(tmp_path: Path) -> None:
    """On a smaller budget."""
    (line,) = [text for text in SHELL if text == "sao compare --arms sao grpo_dis"]
    done = bash(f"{line} rollouts=8 seeds=1 tasks.eval.samples=4", tmp_path)
    assert done.returncode == 0, done.stderr
    assert "separated" in done.stdout


@pytest.mark.slow
def test_each_long_comparison_makes_its_first_run(tmp_path: Path) -> None:
    """Every run of every arm is composed and checked before that one, of the tiny model; then it is interrupted."""
    lines = [line for text in SHELL for line in text.splitlines() if line.startswith("sao compare") and "conf=" in line]
    assert len(lines) >= 5
    for line in lines:
        process = subprocess.Popen(
            [*SAO, *shlex.split(line)[1:], "rollouts=12", "tasks.attempts=4", "tasks.eval.samples=0", "model=tiny"],
            cwd=tmp_path,
            env=ENV,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        first = process.stdout.readline()
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
        assert re.match(r" +1/\d+  base +seed 0 +reward [\d.]+ over 12 rollouts", first), (line, first)
        assert process.returncode == 130, line


def test_the_doctor_looks_at_this_machine(tmp_path: Path) -> None:
    for line in block("sao doctor\n").splitlines():
        done = bash(line, tmp_path)
        # 5: this machine lacks something, and the table says what.
        assert done.returncode in (0, 5), done.stderr
        assert "arith" in done.stdout


def test_confs_are_listed_and_shown(tmp_path: Path) -> None:
    done = bash(block("sao conf\n"), tmp_path)
    assert done.returncode == 0, done.stderr
    assert "trainer.actor_lr             2.0e-05" in done.stdout or "2e-05" in done.stdout


def test_refusals_read_as_shown(tmp_path: Path) -> None:
    (shown,) = [text for text in re.findall(r"^```text\n(.*?)^```", README, re.S | re.M) if "imo_smoek" in text]
    for command, expected in re.findall(r"^\$ sao (.*?)\n(.*?)(?=^\$|\Z)", shown, re.S | re.M):
        done = sao(*shlex.split(command), cwd=tmp_path)
        assert done.returncode == 2
        assert done.stderr == expected


def test_the_ci_script_runs_the_test_commands() -> None:
    assert "<!-- test commands -->\n```sh\n" in README
    assert block("pytest").splitlines()[0].startswith("pip install")
