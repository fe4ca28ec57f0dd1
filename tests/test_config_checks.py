"""What must agree is checked once, and each refusal names the keys and their values."""

from __future__ import annotations

import dataclasses
from functools import reduce

import pytest

from saocli.arms.registry import REGISTRY, build_arm
from saocli.config.arm import ArmConfig
from saocli.config.checks import ARMS, LEAST, check
from saocli.config.load import load_run
from saocli.errors import ConfigError


def refusal(*overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_run("cpu_smoke", overrides, detect=lambda: 0)
    assert caught.value.exit_code == 2
    assert caught.value.fix
    return caught.value.message


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        (["batch_size=4"], ["batch_size is 4", "trainer.global_batch_size is 1"]),
        (["trainer.global_batch_size=2"], ["batch_size is 1", "trainer.global_batch_size is 2"]),
        (["trainer.micro_batch_size=2"], ["trainer.micro_batch_size is 2", "trainer.global_batch_size, 1"]),
        (["trainer.ranks=2"], ["trainer.global_batch_size is 1", "data-parallel size 2", "trainer.ranks=2"]),
        (["trainer.ranks=3", "trainer.tensor_parallel=2"], ["trainer.ranks is 3", "trainer.tensor_parallel, 2"]),
        (["context_length=64", "tasks.max_tokens=64"], ["tasks.max_tokens is 64", "context_length is 64"]),
        (["arm.eps_low=1"], ["arm.eps_low is 1.0"]),
        (["arm.eps_low=0"], ["arm.eps_low is 0.0"]),
        (["arm.eps_high=0"], ["arm.eps_high is 0.0"]),
        (["arm.eps_high=inf"], ["arm.eps_high is inf"]),
        (["arm.eps_high=nan"], ["arm.eps_high is nan"]),
        (["arm.gamma=1.1"], ["arm.gamma is 1.1"]),
        (["arm.lambda_alpha=0"], ["arm.lambda_alpha is 0.0"]),
        (["arm.name=soa"], ["arm.name is 'soa'"]),
        (["arm.group_size=2"], ["arm.group_size is 2", "arm.name=sao"]),
        (["trainer.lr_decay=linear"], ["trainer.lr_decay is linear", "trainer.lr_decay_steps is 0"]),
        (["trainer.adam_beta2=1"], ["trainer.adam_beta2 is 1.0"]),
        (["trainer.actor_lr=nan"], ["trainer.actor_lr is nan"]),
        (["max_staleness=-1"], ["max_staleness is -1"]),
        (["steps=0"], ["steps is 0"]),
        (["engine.device=gpu"], ["engine.kind is embedded", "engine.device is gpu"]),
        (["gateway.host=0.0.0.0"], ["gateway.host is 0.0.0.0", "gateway.token is the default one"]),
        (["gateway.host=sao.example.org"], ["gateway.host is sao.example.org"]),
        (["gateway.token=''"], ["gateway.token is empty"]),
        (["gateway.port=65536"], ["gateway.port is 65536"]),
    ],
)
def test_refused(overrides: list[str], named: list[str]) -> None:
    message = refusal(*overrides)
    assert [text for text in named if text not in message] == []


@pytest.mark.parametrize(
    "overrides",
    [
        ["batch_size=4", "trainer.global_batch_size=4", "trainer.micro_batch_size=4"],
        ["batch_size=2", "trainer.global_batch_size=2", "trainer.ranks=4", "trainer.tensor_parallel=2"],
        ["context_length=65", "tasks.max_tokens=64"],
        ["trainer.lr_decay=linear", "trainer.lr_decay_steps=10"],
        ["gateway.host=0.0.0.0", "gateway.token=mine"],
        ["gateway.host=127.3.2.1"],
        ["gateway.host=::1"],
        ["gateway.host=localhost"],
        ["trainer.actor_lr=0"],
    ],
)
def test_accepted(overrides: list[str]) -> None:
    load_run("cpu_smoke", overrides, detect=lambda: 0)


@pytest.mark.parametrize(
    ("group_size", "batch_size", "attempts", "said"),
    [
        (1, 1, 6, "arm.group_size is 1 for arm.name=grouped"),
        (4, 1, 8, "batch_size is 1, not a multiple of arm.group_size, 4"),
        (4, 4, 6, "tasks.attempts is 6, not a multiple of arm.group_size, 4"),
        (4, 8, 8, None),
    ],
)
def test_group_arms_need_whole_groups(group_size: int, batch_size: int, attempts: int, said: str | None) -> None:
    config = load_run("cpu_smoke", [], detect=lambda: 0).config
    config = dataclasses.replace(
        config,
        batch_size=batch_size,
        arm=dataclasses.replace(config.arm, name="grouped", group_size=group_size),
        trainer=dataclasses.replace(config.trainer, global_batch_size=batch_size),
        tasks=dataclasses.replace(config.tasks, attempts=attempts),
    )
    if said is None:
        check(config, {"grouped": True})
    else:
        with pytest.raises(ConfigError) as caught:
            check(config, {"grouped": True})
        assert caught.value.message == said


def test_arm_names_agree_with_the_registry() -> None:
    built = {
        name: build_arm(ArmConfig(name=name, eps_low=0.3, eps_high=5.0, group_size=1 + ARMS[name])) for name in REGISTRY
    }
    assert {name: arm.grouped for name, arm in built.items()} == dict(ARMS)


def test_every_number_has_a_least_value() -> None:
    config = load_run("cpu_smoke", [], detect=lambda: 0).config
    flat = {f"{section.name}.{field.name}": getattr(getattr(config, section.name), field.name)
            for section in dataclasses.fields(config) if dataclasses.is_dataclass(getattr(config, section.name))
            for field in dataclasses.fields(getattr(config, section.name))}  # fmt: skip
    numbers = {key for key, value in flat.items() if isinstance(value, int | float) and not isinstance(value, bool)}
    free = {"arm.eps_low", "arm.eps_high", "arm.gamma", "arm.lambda_alpha", "arm.group_size", "model.seed"}
    assert numbers - set(LEAST) == free, "every other number is bounded in LEAST; those have rules of their own"
    for key in LEAST:
        reduce(getattr, key.split("."), config)
