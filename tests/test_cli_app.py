"""The program's door: fast, quiet about its insides, and honest in its exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

import pytest

import saocli.cli.app
from saocli.cli.output import print_error, print_json
from saocli.cli.tokens import load_run_tokens, split, split_without_words
from saocli.errors import ConfigError, MachineError, Refused, RunError, SaoError, Unreachable


def sao(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "saocli.cli.app", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=os.environ | env, check=False)


@pytest.mark.alone
def test_help_is_quick_and_loads_nothing_heavy() -> None:
    script = (
        "import sys, runpy; sys.argv = ['sao', '--help']\n"
        "try: runpy.run_module('saocli.cli.app', run_name='__main__')\n"
        "except SystemExit as end: assert not end.code\n"
        "loaded = {name.partition('.')[0] for name in sys.modules}\n"
        "heavy = loaded & {'torch', 'hydra', 'omegaconf', 'megatron', 'transformers', 'fastapi'}\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", script], check=True, capture_output=True)
    best = min(_seconds("--help") for _ in range(5))
    assert best < 0.3, f"{best:.3f} s"


def _seconds(*arguments: str) -> float:
    started = time.perf_counter()
    assert sao(*arguments).returncode == 0
    return time.perf_counter() - started


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (RunError("a"), 1),
        (ConfigError("a"), 2),
        (Unreachable("a"), 3),
        (Refused("a"), 4),
        (MachineError("a"), 5),
        (KeyboardInterrupt(), 130),
    ],
)
def test_exit_codes(
    error: BaseException, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise error

    app = saocli.cli.app
    registered = len(app.app.registered_commands)
    app.app.command("fail")(fail)
    monkeypatch.setattr(sys, "argv", ["sao", "fail"])
    try:
        with pytest.raises(SystemExit) as caught:
            app.main()
    finally:
        del app.app.registered_commands[registered:]
    assert caught.value.code == code
    assert capsys.readouterr().out == ""


def test_usage_errors_exit_2() -> None:
    for arguments in (["nope"], ["conf", "--nope"], ["conf", "imo_smoek"], ["conf", "cpu_smoke", "arith"]):
        done = sao(*arguments)
        assert (done.returncode, done.stdout) == (2, ""), arguments


def test_an_error_and_its_fix(capsys: pytest.CaptureFixture[str]) -> None:
    print_error(ConfigError("batch_size is [4]", fix="set both"), as_json=False)
    print_error(Refused("score must be finite"), as_json=False)
    shown = capsys.readouterr()
    assert shown.err == "error: batch_size is [4]\n       set both\nrefused: score must be finite\n"
    assert shown.out == ""


def test_an_error_as_json() -> None:
    done = sao("conf", "imo_smoek", "--json")
    body = json.loads(done.stderr)["error"]
    assert (done.returncode, done.stdout) == (2, "")
    assert (body["kind"], body["exit_code"]) == ("ConfigError", 2)
    assert body["message"] == "no conf named 'imo_smoek' — did you mean imo_smoke?"


def test_long_errors_stay_on_one_line_in_a_pipe() -> None:
    lines = sao("conf", "cpu_smoke", "trainer.ranks=2").stderr.splitlines()
    assert len(lines) == 2
    assert lines[0].startswith("error: trainer.global_batch_size is 1")


def test_json_cannot_carry_nan() -> None:
    with pytest.raises(ValueError, match="JSON"):
        print_json({"a": float("nan")})


def test_tokens_are_told_apart() -> None:
    found = split(["sao", "conf=arith", "seed=3", "+tasks.options.a=1", "~arm", "++steps=2", "grpo_dis"])
    assert found.conf == "arith"
    assert found.overrides == ("seed=3", "+tasks.options.a=1", "~arm", "++steps=2")
    assert found.words == ("sao", "grpo_dis")


@pytest.mark.parametrize(
    ("tokens", "said"),
    [
        (["conf=a", "conf=b"], "conf= was given 2 times: a, b"),
        (["conf="], "conf= names no conf"),
        (["arith"], "unexpected word 'arith'"),
    ],
)
def test_tokens_that_cannot_be_meant(tokens: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        split_without_words(tokens)


def test_no_conf_lists_them() -> None:
    with pytest.raises(SaoError, match="no conf was named") as caught:
        load_run_tokens(["seed=3"])
    assert "cpu_smoke" in str(caught.value.fix)


def test_conf_dir_by_option_or_environment(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.yaml").write_text("defaults: [cpu_smoke, _self_]\nscenario: mine\n")
    assert load_run_tokens(["conf=mine"], conf_dir=tmp_path).config.scenario == "mine"
    monkeypatch.setenv("SAO_CONF_DIR", str(tmp_path))
    assert load_run_tokens(["conf=mine", "seed=4"]).config.seed == 4
