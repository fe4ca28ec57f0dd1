"""The estimate's arithmetic: parameters exactly, bytes by closed forms."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from trainerkit import make_model

from saocli.config.arms import SHIPPED
from saocli.config.engine import EngineConfig, EngineKind
from saocli.config.estimate import Footprint, estimate, kv_bytes
from saocli.config.load import load_run
from saocli.config.run import RunConfig
from saocli.config.shape import Shape
from saocli.config.trainer import Device, DType
from saocli.doctor.model import PUBLISHED
from saocli.errors import ConfigError
from saocli.models.describe import parameter_count
from saocli.models.tiny import build_tiny

SMOLLM2 = Shape.from_config(PUBLISHED["HuggingFaceTB/SmolLM2-135M-Instruct"])
QWEN = Shape.from_config(PUBLISHED["Qwen/Qwen2.5-1.5B-Instruct"])


def shape_of(folder: Path) -> Shape:
    return Shape.from_config(json.loads((folder / "config.json").read_text()))


def run(name: str = "imo_smoke", *overrides: str, gpus: int = 0) -> RunConfig:
    return load_run(name, overrides, detect=lambda: gpus).config


def part(footprint: Footprint, what: str) -> int:
    return sum(one.bytes for one in footprint.parts if one.what == what)


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("tied", [True, False])
def test_parameters_are_those_of_transformers(kind: str, tied: bool, tmp_path: Path) -> None:
    folder = make_model(tmp_path / "model", kind, tied=tied, head_dim=24)
    assert shape_of(folder).parameters == parameter_count(folder)


def test_parameters_of_the_shipped_models(tmp_path: Path) -> None:
    build_tiny(tmp_path, 0)
    assert shape_of(tmp_path).parameters == parameter_count(tmp_path)
    # As their model cards say.
    assert SMOLLM2.parameters == 134_515_008
    assert QWEN.parameters == 1_543_714_304


def test_a_model_that_cannot_be_trained_or_read_is_refused() -> None:
    config: dict[str, Any] = dict(PUBLISHED["HuggingFaceTB/SmolLM2-135M-Instruct"])
    with pytest.raises(ConfigError, match="GPT2LMHeadModel"):
        Shape.from_config(config | {"architectures": ["GPT2LMHeadModel"]})
    del config["intermediate_size"]
    with pytest.raises(ConfigError, match="intermediate_size"):
        Shape.from_config(config)


def test_bytes_per_parameter() -> None:
    both = 2 * SMOLLM2.backbone + SMOLLM2.hidden  # tied: the actor is its backbone
    for dtype, weights, optimizer, disk in (("fp32", 4, 8, 12), ("bf16", 2, 12, 14)):
        plan = estimate(run("imo_smoke", f"trainer.dtype={dtype}"), SMOLLM2)
        trainer = plan.footprints[0]
        assert part(trainer, "weights") == both * weights
        assert part(trainer, "gradients") == both * 4
        assert part(trainer, "optimizer") == both * optimizer
        assert plan.state_bytes == both * disk
        assert plan.weights_bytes == SMOLLM2.parameters * weights


def test_an_arm_takes_what_it_trains() -> None:
    assert {name for name, arm in SHIPPED.items() if arm.critic} == {"sao"}
    plans = {
        arm: estimate(dataclasses.replace(run(), arm=dataclasses.replace(run().arm, name=arm)), SMOLLM2)
        for arm in ("sao", "grpo", "base")
    }
    assert part(plans["grpo"].footprints[0], "weights") == SMOLLM2.parameters * 4
    assert plans["sao"].state_bytes == plans["grpo"].state_bytes + SMOLLM2.critic_parameters * 12
    assert [one.process for one in plans["base"].footprints] == ["engine", "service"]
    assert plans["base"].state_bytes == 0


def test_the_cache_of_keys_and_values() -> None:
    # layers × kv heads × head_dim × (key, value) × bytes
    assert kv_bytes(SMOLLM2, tokens=1, dtype=DType.FP32) == 30 * 3 * 64 * 2 * 4
    engine = estimate(run("imo_smoke", "engine.slots=4"), SMOLLM2).footprints[1]
    assert part(engine, "KV cache") == 4 * 512 * 30 * 3 * 64 * 2 * 4
    assert part(engine, "KV cache, growing") == part(engine, "KV cache") // 2  # it doubled from 256 to 512
    limited = dataclasses.replace(run().engine, kind=EngineKind.SGLANG, kv_tokens=1000)
    assert part(_engine(limited), "KV cache") == 1000 * 30 * 3 * 64 * 2 * 4


def _engine(config: EngineConfig) -> Footprint:
    return estimate(dataclasses.replace(run(), engine=config), SMOLLM2).footprints[1]


def test_disk_follows_the_retention() -> None:
    one, two = (estimate(run("imo_smoke", f"releases.keep_last={keep}"), SMOLLM2) for keep in (1, 2))
    assert two.disk_bytes * 2 == one.disk_bytes * 3  # keep_last and the one in flight
    assert one.disk_bytes == 2 * (one.weights_bytes + one.state_bytes)


def test_memory_follows_tokens_and_shares() -> None:
    small, large = (estimate(run("imo_smoke", f"context_length={tokens}"), SMOLLM2) for tokens in (512, 1024))
    activations = [part(plan.footprints[0], "activations") for plan in (small, large)]
    assert activations[1] == pytest.approx(2 * activations[0])
    whole = estimate(run("imo_smoke"), SMOLLM2).footprints[0]
    split = estimate(run("imo_smoke", "trainer.ranks=2", "trainer.tensor_parallel=2"), SMOLLM2).footprints[0]
    assert split.copies == 2
    assert part(split, "weights") == part(whole, "weights") // 2
    assert part(split, "activations") < part(whole, "activations")


def test_gpus_apart() -> None:
    plan = estimate(run("imo_smoke", gpus=2), QWEN)
    trainer, engine = (one for one in plan.footprints if one.device is Device.GPU)
    assert plan.gpu_bytes == (trainer.bytes, engine.bytes)
    # bf16 with masters: 18 bytes a parameter of actor and critic.
    fixed = sum(part(trainer, what) for what in ("weights", "gradients", "optimizer"))
    assert fixed == (QWEN.parameters + QWEN.critic_parameters) * 18
    assert plan.ram_bytes == sum(one.bytes for one in plan.footprints if one.device is Device.CPU)


def test_a_shared_gpu_holds_the_larger_phase_not_the_sum() -> None:
    for slots in (32, 200):
        config = run("imo_smoke_1gpu", f"engine.slots={slots}", gpus=1)
        plan = estimate(config, QWEN)
        trainer, engine = (one for one in plan.footprints if one.device is Device.GPU)
        passing = sum(part(trainer, what) for what in ("activations", "logits", "passing gradient", "saving"))
        serving = trainer.bytes - passing + engine.bytes
        training = trainer.bytes + part(engine, "runtime")
        assert plan.gpu_bytes == (max(serving, training),)
        # Few slots: the step is what decides. Many: the KV cache is.
        assert (training > serving) is (slots == 32)
        assert trainer.bytes < plan.gpu_bytes[0] < trainer.bytes + engine.bytes


def test_replicas_have_gpus_of_their_own_and_attached_servers_take_none() -> None:
    three = estimate(run("imo_smoke", "engine.replicas=2", "machine.gpus=3", gpus=3), QWEN)
    trainer, engine = (one for one in three.footprints if one.device is Device.GPU)
    assert three.gpu_bytes == (trainer.bytes, engine.bytes, engine.bytes)
    config = run("imo_smoke", gpus=2)
    attached = dataclasses.replace(config, engine=dataclasses.replace(config.engine, urls=["http://127.0.0.1:1"]))
    assert estimate(attached, QWEN).gpu_bytes == (trainer.bytes,)


def test_writing_a_state_can_take_more_than_a_pass() -> None:
    """Measured with SmolLM2 and a context of 64: the peak is the save's copy of gate, up and their moments."""
    trainer = estimate(run("arith", "context_length=64"), SMOLLM2).footprints[0]
    work = sum(part(trainer, what) for what in ("activations", "logits", "passing gradient", "saving"))
    assert work == 30 * 2 * 1536 * 576 * 12
    assert part(estimate(run("arith"), SMOLLM2).footprints[0], "saving") == 0
