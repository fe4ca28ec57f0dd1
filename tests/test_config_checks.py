"""What must agree is checked once, and each refusal names the keys and their values."""

from __future__ import annotations

import dataclasses
from functools import reduce

import pytest

from saocli.config.checks import LEAST
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
        (["arm.window=0"], ["arm.window is 0"]),
        (["tasks.feedback_s=-1"], ["tasks.feedback_s is -1"]),
        (["tasks.feedback_sigma=nan"], ["tasks.feedback_sigma is nan"]),
        (["compare.rollouts=0"], ["compare.rollouts is 0"]),
        (["compare.seeds=0"], ["compare.seeds is 0"]),
        (["engine.device=gpu"], ["engine.kind is embedded", "engine.device is gpu"]),
        (["engine.restarts=-1"], ["engine.restarts is -1"]),
        (["engine.replicas=0"], ["engine.replicas is 0"]),
        (["engine.replicas=2", "engine.urls=['http://a:1']"], ["engine.replicas is 2", "names 1 running server"]),
        (["engine.urls=['a:1']"], ["engine.urls has 'a:1'"]),
        (["engine.urls=['http://[']"], ["engine.urls has 'http://['"]),
        (["engine.urls=['http://me:secret@a:1']"], ["a name or password in the address of a"]),
        (["engine.urls=['http://a:1','http://a:1/']"], ["engine.urls names a server twice"]),
        (["engine.key_env=KEY"], ["engine.key_env is KEY", "engine.urls is empty"]),
        (["engine.router='http://r:1'"], ["engine.router is http://r:1", "engine.urls is empty"]),
        (["engine.urls=['http://a:1']", "engine.router='r:1'"], ["engine.router has 'r:1'"]),
        (["engine.urls=['http://a:1']", "engine.router='http://me:x@r:1'"], ["a name or password in the address of r"]),
        (["engine.urls=['http://a:1']", "engine.router='http://a:1/'"], ["http://a:1/, which is in engine.urls"]),
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


GROUPED = ["arm=grpo_dis", "batch_size=4", "trainer.global_batch_size=4", "tasks.attempts=4"]


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ([], None),
        (["batch_size=8", "trainer.global_batch_size=8", "tasks.attempts=8"], None),
        (["tasks.pacing=slots", "tasks.concurrency=4"], None),
        (["arm=grpo", "tasks.pacing=none", "tasks.concurrency=1"], None),
        (["arm.group_size=1"], "arm.group_size is 1 for arm.name=grpo_dis"),
        (
            ["batch_size=1", "trainer.global_batch_size=1"],
            "batch_size is 1, not a multiple of arm.group_size, 4",
        ),
        (["tasks.attempts=6"], "tasks.attempts is 6, not a multiple of arm.group_size, 4"),
        (["tasks.attempts=1"], "every prompt comes once (tasks.attempts=1): a group of 4 can never form"),
        (["tasks.attempts=2"], "every prompt comes 2 times (tasks.attempts=2): a group of 4 can never form"),
        (["tasks.order=round_robin"], "tasks.order is round_robin but arm.name=grpo_dis has arm.group_size=4"),
        (
            ["tasks.pacing=slots", "tasks.concurrency=3"],
            "tasks.concurrency is 3 with tasks.pacing=slots, less than arm.group_size, 4",
        ),
        (
            ["tasks.pacing=slots", "tasks.concurrency=4", "batch_size=8", "trainer.global_batch_size=8"],
            "batch_size is 8 with tasks.pacing=slots, more than tasks.concurrency, 4",
        ),
    ],
)
def test_group_arms_need_whole_groups(overrides: list[str], said: str | None) -> None:
    # Hydra refuses two choices of one group.
    kept = [o for o in GROUPED if o.partition("=")[0] not in {other.partition("=")[0] for other in overrides}]
    if said is None:
        load_run("cpu_smoke", [*kept, *overrides], detect=lambda: 0)
    else:
        assert refusal(*kept, *overrides) == said


def test_an_arm_that_does_not_train_waits_for_no_batch() -> None:
    run = ["batch_size=8", "trainer.global_batch_size=8", "tasks.pacing=slots", "steps=3"]
    assert refusal(*run, "arm=running_mean").startswith("batch_size is 8 with tasks.pacing=slots")
    load_run("cpu_smoke", [*run, "arm=base"], detect=lambda: 0)


def test_the_control_arms_have_the_published_numbers() -> None:
    shape = ["batch_size=4", "trainer.global_batch_size=4", "tasks.attempts=4", "tasks.count=100"]
    arms = {
        name: load_run("letters", [f"arm={name}", *shape], detect=lambda: 0).config.arm
        for name in ("grpo_dis", "grpo", "running_mean", "base")
    }
    assert {name: (arm.name, arm.eps_low, arm.eps_high, arm.group_size) for name, arm in arms.items()} == {
        "grpo_dis": ("grpo_dis", 0.3, 5.0, 4),
        "grpo": ("grpo", 0.2, 0.28, 4),
        "running_mean": ("running_mean", 0.3, 5.0, 1),
        "base": ("base", 0.3, 5.0, 1),
    }
    assert arms["running_mean"].window == 8
    assert all(arm.normalize_std for arm in arms.values())


def test_every_number_has_a_least_value() -> None:
    config = load_run("cpu_smoke", [], detect=lambda: 0).config
    flat = {f"{section.name}.{field.name}": getattr(getattr(config, section.name), field.name)
            for section in dataclasses.fields(config) if dataclasses.is_dataclass(getattr(config, section.name))
            for field in dataclasses.fields(getattr(config, section.name))}  # fmt: skip
    numbers = {key for key, value in flat.items() if isinstance(value, int | float) and not isinstance(value, bool)}
    arm = {"arm.eps_low", "arm.eps_high", "arm.gamma", "arm.lambda_alpha", "arm.group_size"}
    free = arm | {"engine.watchdog_s", "model.seed"}
    assert numbers - set(LEAST) == free, "every other number is bounded in LEAST; those have rules of their own"
    for key in LEAST:
        reduce(getattr, key.split("."), config)
