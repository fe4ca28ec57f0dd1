"""Composing a run: every shipped conf on every machine, who wins, what is frozen, what is written down."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from saocli.config.engine import EngineKind
from saocli.config.load import load_run, names
from saocli.config.run import RunConfig
from saocli.config.trainer import Device
from saocli.errors import ConfigError, MachineError

CONFS = [conf.name for conf in names()]


def load(name: str = "cpu_smoke", *overrides: str, gpus: int = 0, conf_dir: Path | None = None):
    return load_run(name, overrides, conf_dir=conf_dir, detect=lambda: gpus)


def test_the_shipped_runs_are_there_and_described() -> None:
    assert {"cpu_smoke", "arith", "arith_batch4", "imo_smoke", "letters"} <= set(CONFS)
    assert "base" not in CONFS
    assert all(conf.description for conf in names())


@pytest.mark.parametrize("gpus", [0, 8])
@pytest.mark.parametrize("name", CONFS)
def test_every_conf_composes_on_both_machines(name: str, gpus: int) -> None:
    loaded = load(name, gpus=gpus)
    assert isinstance(loaded.config, RunConfig)
    assert loaded.config.name == name
    assert loaded.config.scenario
    assert set(loaded.origins) >= {"arm.eps_high", "tasks.source", "trainer.actor_lr"}
    assert loaded.profile == ("gpu" if gpus and "gpu" in loaded.config.profiles else "cpu")


def test_the_values_are_real_frozen_dataclasses() -> None:
    config = load().config
    for value in (config, config.arm, config.trainer, config.tasks.eval):
        assert dataclasses.is_dataclass(value)
        with pytest.raises(dataclasses.FrozenInstanceError):
            value.name = "other"  # type: ignore[attr-defined]
    assert config.trainer.device is Device.CPU


def test_the_method_s_numbers() -> None:
    config = load("imo_smoke").config
    assert (config.arm.eps_low, config.arm.eps_high) == (0.3, 5.0)
    assert (config.arm.gamma, config.arm.lambda_alpha) == (1.0, 1.5)
    assert (config.trainer.actor_lr, config.trainer.critic_lr) == (1e-6, 5e-6)
    assert (config.trainer.critic_updates, config.trainer.critic_warmup_steps) == (2, 10)
    assert (config.batch_size, config.max_staleness) == (1, 0)
    coding = load("imo_smoke", "arm=sao_coding").config.arm
    assert (coding.eps_low, coding.eps_high) == (0.8, 3.0)


def test_the_arithmetic_runs() -> None:
    single, four = load("arith").config, load("arith_batch4").config
    assert (single.batch_size, single.tasks.count, single.tasks.max_tokens) == (1, 300, 40)
    assert (single.tasks.eval.samples, single.tasks.eval.at) == (200, [0, 100, 300])
    assert (four.batch_size, four.trainer.global_batch_size, four.trainer.critic_warmup_steps) == (4, 4, 3)
    assert (four.tasks.count // four.batch_size, four.tasks.eval.at) == (25, [0, 25])
    assert (single.trainer.actor_lr, four.trainer.actor_lr) == (3e-6, 1e-5)


def test_profiles_of_imo_smoke() -> None:
    cpu, gpu = load("imo_smoke"), load("imo_smoke", gpus=2)
    assert (cpu.profile, cpu.profile_note) == ("cpu", "profile cpu (no GPU found)")
    assert (gpu.profile, gpu.profile_note) == ("gpu", "profile gpu (2 GPUs found)")
    assert (cpu.config.model.name, cpu.config.engine.kind) == ("smollm2-135m", EngineKind.EMBEDDED)
    assert (gpu.config.model.name, gpu.config.engine.kind) == ("qwen2.5-1.5b-instruct", EngineKind.SGLANG)
    assert (cpu.config.tasks.max_tokens, gpu.config.tasks.max_tokens) == (128, 2048)
    assert cpu.config.tasks.attempts == gpu.config.tasks.attempts == 6


def test_a_user_s_override_wins_over_the_profile() -> None:
    loaded = load("imo_smoke", "model=tiny", "tasks.max_tokens=64", gpus=2)
    assert (loaded.config.model.name, loaded.config.tasks.max_tokens) == ("tiny", 64)
    assert loaded.config.engine.kind is EngineKind.SGLANG


def test_machine_kinds() -> None:
    assert load("imo_smoke", "machine=cpu", gpus=8).profile == "cpu"
    assert load("imo_smoke", gpus=1).profile_note == "profile cpu (1 GPU found, machine.gpus asks for 2)"
    assert load("imo_smoke", "machine.gpus=1", "engine.colocate=true", gpus=1).profile == "gpu"
    with pytest.raises(MachineError, match=r"machine\.gpus=2, 1 GPU found: 1 missing") as caught:
        load("imo_smoke", "machine=gpu", gpus=1)
    assert caught.value.exit_code == 5
    with pytest.raises(ConfigError, match="no gpu profile"):
        load("cpu_smoke", "machine=gpu", gpus=8)


def test_gpus_are_not_counted_when_the_conf_has_no_use_for_them() -> None:
    def refuse() -> int:
        raise AssertionError("counted")

    assert load_run("cpu_smoke", [], detect=refuse).profile == "cpu"


@pytest.mark.parametrize("gpus", [0, 2])
@pytest.mark.parametrize("name", CONFS)
def test_the_written_config_gives_the_same_run_on_any_machine(name: str, gpus: int, tmp_path: Path) -> None:
    first = load(name, "seed=7", gpus=gpus)
    (tmp_path / "config.yaml").write_text(first.yaml)
    if first.profile == "cpu":
        again = load("config", conf_dir=tmp_path, gpus=8 - gpus)
    else:
        with pytest.raises(MachineError):
            load("config", conf_dir=tmp_path, gpus=0)
        again = load("config", conf_dir=tmp_path, gpus=gpus)
    profiles, machine = again.config.profiles, again.config.machine
    assert (profiles, machine.kind.value) == ({first.profile: []}, first.profile)
    assert (
        dataclasses.replace(again.config, profiles=first.config.profiles, machine=first.config.machine) == first.config
    )


def test_text_that_looks_like_an_interpolation_survives(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(
        "defaults: [cpu_smoke, _self_]\n"
        "tasks: {source: inline, items: [{id: a, prompt: 'set \\${x} and \\\\\\${y}', answer: '1'}]}\n"
    )
    first = load("mine", conf_dir=tmp_path)
    assert first.config.tasks.items[0]["prompt"] == r"set ${x} and \${y}"
    (tmp_path / "config.yaml").write_text(first.yaml)
    assert load("config", conf_dir=tmp_path).config.tasks.items == first.config.tasks.items


def test_secrets_are_written_nowhere(tmp_path: Path) -> None:
    loaded = load("cpu_smoke", "gateway.token=hunter2", "++gateway.port=1234")
    assert loaded.config.gateway.token == "hunter2"
    for shown in (loaded.yaml, str(loaded.values), str(loaded.overrides), str(loaded.origins)):
        assert "hunter2" not in shown
    assert loaded.overrides == ("gateway.token=***", "++gateway.port=1234")
    whole = load("cpu_smoke", "gateway={token: hunter2}")
    assert (whole.overrides, whole.origins["gateway.token"]) == (("gateway=***",), "override")
    (tmp_path / "config.yaml").write_text(loaded.yaml)
    assert load("config", conf_dir=tmp_path).config.gateway.token == "reef-local"


def test_a_user_s_folder_stands_in_front(tmp_path: Path) -> None:
    (tmp_path / "arm").mkdir()
    (tmp_path / "arm" / "sao.yaml").write_text("name: sao\neps_low: 0.25\neps_high: 4.5\n")
    (tmp_path / "mine.yaml").write_text("defaults: [imo_smoke, _self_]\ndescription: my run\nscenario: mine\n")
    loaded = load("mine", conf_dir=tmp_path)
    assert (loaded.config.arm.eps_low, loaded.config.scenario) == (0.25, "mine")
    assert load("imo_smoke", conf_dir=tmp_path).config.arm.eps_low == 0.25, "a shipped run takes the user's choice too"
    assert loaded.origins["arm.eps_low"] == f"{tmp_path}/arm/sao.yaml"
    assert ("mine", "my run") in [(conf.name, conf.description) for conf in names(tmp_path)]
    assert load("imo_smoke").config.arm.eps_low == 0.3


def test_hydra_s_grammar() -> None:
    config = load(
        "cpu_smoke", "+tasks.options.low=1", "tasks.stop=['a b', c]", "tasks.eval={samples: 3, at: [0]}", "steps=null"
    ).config
    assert config.tasks.options == {"low": 1}
    assert config.tasks.stop == ["a b", "c"]
    assert (config.tasks.eval.samples, config.tasks.eval.concurrency) == (3, 8)
    assert load("cpu_smoke", "tasks.eval.samples=${tasks.count}").config.tasks.eval.samples == 3
