"""SGLang's command line, environment and flags, as a conf asks for them: these are all that GPUs see differently."""

from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from sglangkit import ENVIRONMENT, needs_sglang

from saocli.config.engine import EngineConfig, EngineKind, Pause
from saocli.config.load import load_run
from saocli.config.trainer import Device, DType
from saocli.engine.sglang.command import CPU_STUB, LEASH, OWN_FLAGS, server_arguments, server_environment
from saocli.engine.sglang.flags import Flag, arguments, known_flags
from saocli.engine.sglang.launch import start_sglang
from saocli.errors import ConfigError, MachineError

ARGUMENTS: dict[str, Any] = {
    "model_folder": Path("/m"),
    "version": "s@0",
    "context_length": 4096,
    "seed": 7,
    "port": 30000,
    "secrets": Path("/run/engine.keys.yaml"),
}
KNOWN = {
    "--max-prefill-tokens": Flag(nargs=None, choices=None),
    "--enable-metrics": Flag(nargs=0, choices=None),
    "--cuda-graph-bs-decode": Flag(nargs="+", choices=None),
    "--schedule-policy": Flag(nargs=None, choices=("lpm", "fcfs")),
    "--port": Flag(nargs=None, choices=None),
}


def test_the_gpu_command_line() -> None:
    config = EngineConfig(
        kind=EngineKind.SGLANG,
        device=Device.GPU,
        dtype=DType.BF16,
        slots=32,
        tp=2,
        memory_fraction=0.8,
        attention="fa3",
    )
    assert server_arguments(config, **ARGUMENTS) == [
        *(str(LEASH), "--config", "/run/engine.keys.yaml", "--model-path", "/m", "--weight-version", "s@0"),
        *("--host", "127.0.0.1", "--port", "30000", "--dtype", "bfloat16", "--context-length", "4104"),
        *("--max-running-requests", "32", "--tp-size", "2", "--dp-size", "1", "--random-seed", "7"),
        *("--watchdog-timeout", "300", "--attention-backend", "fa3", "--mem-fraction-static", "0.8"),
    ]


def test_the_cpu_command_line_bounds_the_cache_and_names_the_backend() -> None:
    argv = server_arguments(EngineConfig(kind=EngineKind.SGLANG, slots=4), **ARGUMENTS)
    pairs = dict(pairwise(argv))
    assert pairs["--device"] == "cpu"
    assert pairs["--dtype"] == "float32"
    assert pairs["--attention-backend"] == "torch_native"
    assert pairs["--max-total-tokens"] == str(4 * 4104)
    assert argv[-2:] == ["--skip-server-warmup", "--sleep-on-idle"]


def test_in_place_pauses_go_without_the_prefix_cache() -> None:
    assert "--disable-radix-cache" in server_arguments(EngineConfig(pause=Pause.IN_PLACE), **ARGUMENTS)
    assert "--disable-radix-cache" not in server_arguments(EngineConfig(), **ARGUMENTS)


def test_every_flag_that_is_written_is_taken() -> None:
    for config in (EngineConfig(pause=Pause.IN_PLACE), EngineConfig(device=Device.GPU, memory_fraction=0.5)):
        argv = server_arguments(config, **ARGUMENTS)
        assert {argument for argument in argv if argument.startswith("--")} <= OWN_FLAGS


def test_the_stub_and_only_the_stub_is_on_the_path_of_a_cpu_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/ours")
    monkeypatch.setenv("SAO_TOKEN", "secret")
    cpu = server_environment(EngineConfig(threads=3))
    gpu = server_environment(EngineConfig(device=Device.GPU))
    assert (cpu["PYTHONPATH"], gpu["PYTHONPATH"]) == (str(CPU_STUB), "")
    assert cpu["SGLANG_USE_CPU_ENGINE"] == "1"
    assert "SGLANG_USE_CPU_ENGINE" not in gpu
    assert cpu["OMP_NUM_THREADS"] == "3"
    assert "SAO_TOKEN" not in cpu
    assert "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN" not in gpu
    tight = server_environment(EngineConfig(), spare_positions=False)
    assert tight["SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"] == "1"
    assert (CPU_STUB / "sgl_kernel" / "__init__.py").is_file()


def test_flags_become_arguments() -> None:
    flags = {
        "max-prefill-tokens": 4096,
        "enable_metrics": True,
        "cuda-graph-bs-decode": [1, 2],
        "--schedule-policy": "lpm",
    }
    argv = "--max-prefill-tokens 4096 --enable-metrics --cuda-graph-bs-decode 1 2 --schedule-policy lpm"
    assert arguments(flags, KNOWN, OWN_FLAGS) == argv.split()
    assert arguments({"enable-metrics": False, "max-prefill-tokens": None}, KNOWN, OWN_FLAGS) == []


@pytest.mark.parametrize(
    ("flags", "message", "fix"),
    [
        ({"max-prefil-tokens": 1}, "max-prefil-tokens is not an argument", "mean max-prefill-tokens"),
        ({"port": 1}, "port is set by this program", "own key"),
        ({"max-prefill-tokens": True}, "takes a value", "give it one"),
        ({"enable-metrics": 3}, "takes no value", "true"),
        ({"max-prefill-tokens": [1, 2]}, "takes one value", "one value"),
        ({"schedule-policy": "best"}, "schedule-policy is best", "lpm · fcfs"),
    ],
)
def test_wrong_flags_are_refused(flags: dict[str, Any], message: str, fix: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        arguments(flags, KNOWN, OWN_FLAGS)
    assert fix in str(caught.value.fix)


@needs_sglang
def test_the_installed_sglang_takes_every_flag_that_is_written() -> None:
    known = known_flags(str(ENVIRONMENT / "bin/python"))
    assert known.keys() >= OWN_FLAGS
    assert arguments({"max-prefill-tokens": 4096, "enable-metrics": True}, known, OWN_FLAGS)


@pytest.mark.parametrize(
    ("python", "why"), [(None, "engine.python is not set, and this interpreter is"), ("/no/python", "could not be run")]
)
async def test_an_interpreter_without_sglang_is_refused_with_how_to_build_one(
    tmp_path: Path, python: str | None, why: str
) -> None:
    config = EngineConfig(kind=EngineKind.SGLANG, python=python)
    with pytest.raises(MachineError, match=why) as caught:
        await start_sglang(
            config, model_folder=tmp_path, version="v0", context_length=64, seed=0, log=tmp_path / "engine.log"
        )
    assert "tests/sglang/build_env.sh" in str(caught.value.fix)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        (["engine.tp=2"], ["engine.device is cpu", "engine.tp is 2"]),
        (["engine.memory_fraction=1"], ["engine.memory_fraction is 1.0"]),
        (["engine.kv_tokens=255"], ["engine.kv_tokens is 255", "context_length is 256"]),
        (["engine.watchdog_s=60"], ["engine.watchdog_s is 60", "engine.publish_timeout_s is 120"]),
        (["engine.kind=embedded", "+engine.flags.enable-metrics=true"], ["engine.flags is set"]),
    ],
)
def test_what_sglang_cannot_do_is_refused_at_config_time(overrides: list[str], named: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        load_run("smoke_sglang_cpu", overrides, detect=lambda: 0)
    assert [text for text in named if text not in caught.value.message] == []


def test_the_smoke_conf_finds_the_built_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SAO_SGLANG_PYTHON", raising=False)
    assert (
        load_run("smoke_sglang_cpu", [], detect=lambda: 0).config.engine.python == "~/.cache/sao/sglang-env/bin/python"
    )
    monkeypatch.setenv("SAO_SGLANG_PYTHON", sys.executable)
    assert load_run("smoke_sglang_cpu", [], detect=lambda: 0).config.engine.python == sys.executable
