"""What the GPU paths start: which GPUs, which arguments, which environment. Nothing is started here."""

from __future__ import annotations

import re
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from saocli.config.engine import EngineConfig, EngineKind
from saocli.config.load import load_run
from saocli.config.placement import VISIBLE, gpus_needed, place
from saocli.config.run import RunConfig
from saocli.config.trainer import Device, DType, TrainerConfig
from saocli.engine.sglang.command import OWN_FLAGS, server_arguments, server_environment
from saocli.errors import ConfigError, MachineError
from saocli.trainer.channel import SECRET_VARIABLE
from saocli.trainer.command import launch_arguments, launch_environment


def run(name: str, *overrides: str, gpus: int) -> RunConfig:
    return load_run(name, overrides, detect=lambda: gpus).config


def sglang(config: EngineConfig) -> list[str]:
    return server_arguments(
        config,
        model_folder=Path("/m"),
        version="s@0",
        context_length=4096,
        seed=0,
        port=30000,
        secrets=Path("/run/keys.yaml"),
    )


def test_imo_smoke_on_gpus_is_the_published_example() -> None:
    config = run("imo_smoke", gpus=2)
    assert (config.model.hub_id, config.scenario) == ("Qwen/Qwen2.5-1.5B-Instruct", "sao-smoke")
    assert (config.machine.gpus, gpus_needed(config)) == (2, 2)
    assert (config.arm.name, config.batch_size, config.max_staleness) == ("sao", 1, 0)
    trainer, engine, tasks = config.trainer, config.engine, config.tasks
    assert (trainer.device, trainer.dtype, trainer.ranks) == (Device.GPU, DType.BF16, 1)
    assert (engine.kind, engine.device, engine.tp, engine.dp) == (EngineKind.SGLANG, Device.GPU, 1, 1)
    assert (len(tasks.items), tasks.attempts, tasks.order.value, tasks.concurrency) == (3, 6, "by_problem", 1)
    assert (tasks.max_tokens, tasks.temperature, config.context_length) == (2048, 1.0, 4096)
    one = run("imo_smoke_1gpu", gpus=1)
    assert (one.machine.gpus, one.engine.colocate, gpus_needed(one)) == (1, True, 1)
    for key in ("model", "trainer", "tasks", "arm", "context_length", "batch_size", "scenario", "releases"):
        assert getattr(one, key) == getattr(config, key)


@pytest.mark.parametrize("name", ["imo_smoke", "imo_smoke_1gpu"])
def test_too_few_gpus_are_refused_with_what_is_missing(name: str) -> None:
    with pytest.raises(MachineError, match=r"needs machine\.gpus=\d, no GPU found: \d missing") as caught:
        run(name, "machine=gpu", gpus=0)
    assert "machine=cpu" in str(caught.value.fix)


@pytest.mark.parametrize(
    ("overrides", "visible", "trainer", "engines"),
    [
        ((), None, "0", ("1",)),
        ((), "5,7", "5", ("7",)),
        ((), "GPU-aa, GPU-bb", "GPU-aa", ("GPU-bb",)),
        (("trainer.ranks=2", "trainer.tensor_parallel=2", "engine.tp=2"), None, "0,1", ("2,3",)),
        (("engine.dp=2",), "4,5,6", "4", ("5,6",)),
        (("engine.replicas=2", "engine.tp=2"), None, "0", ("1,2", "3,4")),
        (("arm=base", "arm.name=base"), None, None, ("0",)),
        (("engine=embedded",), None, "0", (None,)),
        (("trainer=cpu",), "3,4", None, ("3",)),
        (("engine.publish=tensor",), "5,7", "5", ("7,5",)),
        (
            ("engine.publish=tensor", "engine.tp=2", "trainer.ranks=2", "trainer.tensor_parallel=2"),
            None,
            "0,1",
            ("2,3,0",),
        ),
        (("engine.colocate=true",), "5,7", "5", ("5",)),
        (("engine.colocate=true", "engine.tp=2"), None, "0", ("0,1",)),
    ],
)
def test_the_trainer_comes_first_and_the_engines_after_it(
    overrides: tuple[str, ...], visible: str | None, trainer: str | None, engines: tuple[str | None, ...]
) -> None:
    config = run("imo_smoke", "machine.gpus=8", *overrides, gpus=8)
    placement = place(config, {} if visible is None else {VISIBLE: visible})
    assert (placement.trainer, placement.engines) == (trainer, engines)


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        (["trainer.ranks=2", "trainer.tensor_parallel=2"], ["machine.gpus is 2", "take 3", "trainer.ranks=2"]),
        (["engine.replicas=2"], ["take 3", "engine.replicas=2"]),
        (["engine.colocate=true", "engine=embedded"], ["engine.kind=embedded"]),
        (["engine.colocate=true", "trainer=cpu"], ["trainer.device=cpu"]),
        (["engine.colocate=true", "engine.replicas=2"], ["engine.replicas=2"]),
        (["engine.colocate=true", "engine.pause=in_place"], ["engine.pause is in_place"]),
        (["engine.colocate=true", "engine.publish=distributed"], ["engine.publish is distributed"]),
    ],
)
def test_what_the_gpus_cannot_hold_is_refused_at_config_time(overrides: list[str], named: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        load_run("imo_smoke", overrides, detect=lambda: 2)
    assert [text for text in named if text not in caught.value.message] == []


def test_the_trainer_s_ranks() -> None:
    config = TrainerConfig(device=Device.GPU, ranks=4, tensor_parallel=2, python="~/env/bin/python", threads=3)
    assert launch_arguments(config, Path("/run/trainer.json")) == [
        *(str(Path.home() / "env/bin/python"), "-m", "saocli.trainer.launcher", "/run/trainer.json", "4"),
    ]
    assert launch_arguments(TrainerConfig(), Path("s"))[0] == sys.executable


def test_the_trainer_s_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VISIBLE, "0,1,2,3,4,5,6,7")
    monkeypatch.setenv("SAO_TOKEN", "the client's")
    env = launch_environment(TrainerConfig(device=Device.GPU, threads=3), secret="s", gpus="0,1,2,3")
    assert (env[VISIBLE], env[SECRET_VARIABLE], env["OMP_NUM_THREADS"]) == ("0,1,2,3", "s", "3")
    assert "SAO_TOKEN" not in env
    assert launch_environment(TrainerConfig(), secret="s", gpus=None)[VISIBLE] == "0,1,2,3,4,5,6,7"


def test_sglang_s_arguments_on_gpus() -> None:
    plain = EngineConfig(kind=EngineKind.SGLANG, device=Device.GPU, dtype=DType.BF16, tp=2, dp=2, slots=16)
    pairs = dict(pairwise(sglang(plain)))
    assert (pairs["--tp-size"], pairs["--dp-size"], pairs["--dtype"]) == ("2", "2", "bfloat16")
    # SGLang's own choice of cache, backend and device.
    assert not {"--max-total-tokens", "--mem-fraction-static", "--attention-backend", "--device"} & pairs.keys()
    assert "--enable-memory-saver" not in sglang(plain)


def test_a_colocated_sglang_takes_no_more_cache_than_was_estimated() -> None:
    argv = sglang(EngineConfig(kind=EngineKind.SGLANG, device=Device.GPU, slots=16, colocate=True))
    assert argv[-1] == "--enable-memory-saver"
    assert dict(pairwise(argv))["--max-total-tokens"] == str(16 * 4104)
    bounded = EngineConfig(
        kind=EngineKind.SGLANG, device=Device.GPU, colocate=True, kv_tokens=9000, memory_fraction=0.3
    )
    pairs = dict(pairwise(sglang(bounded)))
    assert (pairs["--max-total-tokens"], pairs["--mem-fraction-static"]) == ("9000", "0.3")
    assert {word for word in argv if word.startswith("--")} <= OWN_FLAGS


def test_sglang_s_environment_names_its_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VISIBLE, "0,1,2")
    gpu = EngineConfig(kind=EngineKind.SGLANG, device=Device.GPU, python="~/sglang/bin/python")
    env = server_environment(gpu, gpus="1,2")
    assert env[VISIBLE] == "1,2"
    assert env["PATH"].split(":")[0] == str(Path.home() / "sglang/bin")
    assert server_environment(gpu)[VISIBLE] == "0,1,2"
    assert server_environment(EngineConfig(kind=EngineKind.SGLANG), gpus="1,2")[VISIBLE] == ""


def test_one_process_never_sees_another_s_gpus() -> None:
    config = run(
        "imo_smoke", "machine.gpus=8", "trainer.ranks=2", "trainer.tensor_parallel=2", "engine.replicas=3", gpus=8
    )
    placement = place(config, {})
    seen = [re.findall(r"\d+", names or "") for names in (placement.trainer, *placement.engines)]
    assert sorted(index for names in seen for index in names) == ["0", "1", "2", "3", "4"]
