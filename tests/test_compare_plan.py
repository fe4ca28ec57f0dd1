"""A plan gives every arm the same checkpoint, prompts, budget and seeds, and refuses what cannot be compared."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from saocli.compare.plan import TUNING_SEED, Request, make_plan
from saocli.compare.play import read_request, write_request
from saocli.errors import ConfigError, StoreError
from saocli.tasks.sets import load_tasks


def request(*arms: str, conf: str = "compare", overrides: tuple[str, ...] = (), sweep: tuple[str, ...] = ()) -> Request:
    return Request(conf=conf, arms=arms, overrides=overrides, sweep=sweep)


def test_every_arm_plays_the_same_prompts_equally_often() -> None:
    plan = make_plan(request("sao", "grpo_dis"))
    runs = plan.runs({})
    assert [(run.label, run.seed) for run in runs[:4]] == [("base", 0), ("sao", 0), ("grpo_dis", 0), ("base", 1)]
    assert len(runs) == 3 * 3
    for seed in plan.seeds:
        (base, sao, grpo) = [run.loaded.config for run in runs if run.seed == seed]
        assert {config.tasks.count * config.tasks.attempts for config in (base, sao, grpo)} == {48}
        assert (
            load_tasks(sao.tasks, seed=seed) == load_tasks(grpo.tasks, seed=seed) == load_tasks(base.tasks, seed=seed)
        )
        assert {config.seed for config in (base, sao, grpo)} == {seed}
        # The paper's shape: as many rollouts a step in each arm.
        assert sao.batch_size == grpo.batch_size == grpo.arm.group_size == 4
        assert sao.arm.group_size == 1
    assert load_tasks(runs[0].loaded.config.tasks, seed=0) != load_tasks(runs[3].loaded.config.tasks, seed=1)


def test_an_arm_named_twice_is_there_twice() -> None:
    plan = make_plan(request("sao", "sao"))
    assert plan.labels == ("base", "sao", "sao#2")
    first, second = [run.loaded.config for run in plan.runs({}) if run.seed == 0 and run.arm == "sao"]
    assert first == second


def test_one_arm_is_compared_with_the_base() -> None:
    assert make_plan(request("sao")).labels == ("base", "sao")
    assert make_plan(request("base", "sao")).labels == ("base", "sao")


def test_a_variant_in_conf_is_an_arm() -> None:
    (run,) = [
        run for run in make_plan(request("sao_coding", overrides=("compare.seeds=1",))).runs({}) if run.arm != "base"
    ]
    assert (run.loaded.config.arm.name, run.loaded.config.arm.eps_low) == ("sao", 0.8)


def test_the_sweep_tries_each_value_for_each_arm_on_a_seed_apart() -> None:
    plan = make_plan(request("sao", "grpo_dis", sweep=("trainer.actor_lr=1e-3", "trainer.actor_lr=2e-3")))
    assert plan.tuning_runs("base") == []
    for label in ("sao", "grpo_dis"):
        runs = plan.tuning_runs(label)
        assert [run.loaded.config.trainer.actor_lr for run in runs] == [1e-3, 2e-3]
        assert {run.seed for run in runs} == {TUNING_SEED}
        assert {run.loaded.config.tasks.eval.samples for run in runs} == {0}
    chosen = plan.runs({"sao": "trainer.actor_lr=2e-3", "grpo_dis": "trainer.actor_lr=1e-3"})
    rates = {run.label: run.loaded.config.trainer.actor_lr for run in chosen}
    assert (rates["sao"], rates["grpo_dis"]) == (2e-3, 1e-3)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (request("soa"), "no arm named 'soa'"),
        (request("grpo_dis", overrides=("compare.rollouts=50",)), "50, not a multiple of tasks.attempts, 4"),
        (request("sao", overrides=("compare.rollouts=6", "tasks.attempts=2")), "6, not a multiple of batch_size, 4"),
        (request("grpo_dis", conf="compare_stream"), "every prompt comes once"),
        (request("sao", sweep=("trainer.actor_rl=1", "trainer.actor_rl=2")), "trainer.actor_rl"),
    ],
)
def test_what_cannot_be_compared_is_refused_with_its_numbers(asked: Request, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make_plan(asked)
    assert message in str(caught.value)


def test_a_written_down_set_is_attempted_as_often_as_the_budget_allows() -> None:
    plan = make_plan(request("sao", conf="imo_smoke", overrides=("machine=cpu",)))
    assert {run.loaded.config.tasks.attempts for run in plan.runs({})} == {16}


def test_a_request_goes_to_disk_and_back(tmp_path: Path) -> None:
    asked = request("sao", "grpo_dis", overrides=("compare.seeds=2",), sweep=("trainer.actor_lr=1",))
    write_request(tmp_path, asked)
    assert read_request(tmp_path) == asked
    assert json.loads((tmp_path / "request.json").read_text())["arms"] == ["sao", "grpo_dis"]
    with pytest.raises(StoreError, match="holds no comparison"):
        read_request(tmp_path / "elsewhere")
