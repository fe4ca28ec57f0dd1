"""Every value of a run says where it came from."""

from __future__ import annotations

from saocli.config.load import load_run
from saocli.config.origins import IN_CODE, Layer, at, flatten, trace


def test_the_last_layer_that_set_a_key_is_its_origin() -> None:
    resolved = {"a": 1, "b": {"c": 2, "d": {}}, "e": {"x": 1, "y": 2}, "f": [1]}
    layers = [
        Layer("one", {"a": 0, "b": {"c": 1, "d": {}}}),
        Layer("two", {"b": {"c": 2}}),
        Layer("three", at("e", {"x": 1, "y": 2})),
        Layer("four", at("e.y", 2)),
        Layer("five", {"e": {}}),  # merging nothing changes nothing
    ]
    assert trace(layers, resolved) == {
        "a": "one",
        "b.c": "two",
        "b.d": "one",
        "e.x": "three",
        "e.y": "four",
        "f": IN_CODE,
    }


def test_flatten_and_at() -> None:
    assert flatten({"a": {"b": {"c": 1}}, "d": {}}) == {"a.b.c": 1, "d": {}}
    assert at("a.b", {"c": 1}) == {"a": {"b": {"c": 1}}}
    assert at("", {"c": 1}) == {"c": 1}


def test_origins_of_a_composed_run() -> None:
    loaded = load_run("imo_smoke", ["arm=sao_coding", "seed=3", "tasks.temperature=0.9"], detect=lambda: 0)
    expected = {
        "name": "the conf's name",
        "scenario": "conf/imo_smoke.yaml",
        "seed": "override",
        "batch_size": "default in code",
        "context_length": "profile cpu",
        "tasks.max_tokens": "profile cpu",
        "tasks.temperature": "override",
        "tasks.source": "conf/tasks/imo3.yaml",
        "arm.eps_high": "conf/arm/sao_coding.yaml (override)",
        "engine.kind": "conf/engine/embedded.yaml (profile cpu)",
        "gateway.host": "conf/gateway/local.yaml",
        "machine.kind": "conf/machine/auto.yaml",
        "trainer.actor_lr": "default in code",
    }
    assert {key: loaded.origins[key] for key in expected} == expected
    assert set(loaded.origins) == set(flatten(loaded.values))


def test_a_chain_of_confs_names_the_one_that_set_it() -> None:
    origins = load_run("arith_batch4", [], detect=lambda: 0).origins
    assert origins["batch_size"] == "conf/arith_batch4.yaml"
    assert origins["trainer.actor_lr"] == "conf/arith_batch4.yaml"
    assert origins["trainer.critic_lr"] == "conf/arith.yaml"
    assert origins["tasks.eval.at"] == "conf/arith_batch4.yaml"
    assert origins["tasks.eval.samples"] == "conf/arith.yaml"
