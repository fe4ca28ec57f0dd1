"""The estimate against what real processes occupy."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from memorykit import engine_peaks, trainer_peaks
from trainerkit import VOCAB, make_model, megatron_process

from saocli.config.estimate import activation_bytes, estimate
from saocli.config.load import load_run
from saocli.config.shape import Shape
from saocli.config.trainer import DType
from saocli.models.resolve import resolve

pytestmark = pytest.mark.slow
CLOSE = 0.25


@pytest.fixture(scope="module")
def megatron() -> Iterator[Any]:
    with megatron_process() as run:
        yield run


def saved_and_parameters(folder: Path, bf16: bool, rows: int, tokens: int) -> tuple[int, int, int]:
    """Bytes that autograd saves in the backbone's forward, parameters aside; and the parameters of actor and critic."""
    import torch

    from saocli.trainer.megatron.bridge import make_bridge, read_config
    from saocli.trainer.megatron.model import load_actor, load_critic

    dtype = torch.bfloat16 if bf16 else torch.float32
    config = read_config(folder)
    bridge = make_bridge(config, dtype)
    actor = load_actor(bridge, folder)
    critic = load_critic(make_bridge(config, dtype), folder)
    own = {parameter.untyped_storage().data_ptr() for parameter in actor.parameters()}
    saved: dict[int, Any] = {}  # held, so that no address is used twice

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.untyped_storage().data_ptr() not in own:
            saved[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        hidden = actor.hidden(torch.randint(0, VOCAB, (rows, tokens)))
    assert hidden.requires_grad
    counts = [sum(p.numel() for p in model.parameters()) for model in (actor, critic)]
    return sum(storage.nbytes() for storage in saved.values()), counts[0], counts[1]


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("bf16", [False, True], ids=["fp32", "bf16"])
def test_activations_are_what_autograd_saves(kind: str, bf16: bool, megatron: Any, tmp_path: Path) -> None:
    sizes = {"hidden_size": 128, "intermediate_size": 448, "num_hidden_layers": 4, "head_dim": 48}
    folder = make_model(tmp_path / "model", kind, **sizes)
    shape = Shape.from_config(json.loads((folder / "config.json").read_text()))
    rows, tokens = 1, 64
    saved, actor, critic = megatron(saved_and_parameters, folder, bf16, rows, tokens)
    assert (actor, critic) == (shape.parameters, shape.critic_parameters)
    counted = activation_bytes(shape, tokens=rows * tokens, dtype=DType.BF16 if bf16 else DType.FP32)
    assert counted == pytest.approx(saved, rel=0.03)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "conf",
    [
        "cpu_smoke",
        pytest.param("imo_smoke", marks=pytest.mark.smollm2),
    ],
)
async def test_memory_and_disk_are_as_estimated(conf: str, tmp_path: Path) -> None:
    config = load_run(conf, ["trainer.threads=1", "engine.threads=1"], detect=lambda: 0).config
    folder = resolve(config.model, on_progress=lambda text, fraction: None)
    shape = Shape.from_config(json.loads((folder / "config.json").read_text()))
    plan = estimate(config, shape)
    trainer, engine = plan.footprints[:2]
    peaks = await trainer_peaks(config, folder, vocab=shape.vocab, tmp=tmp_path)
    served = await engine_peaks(config, folder, vocab=shape.vocab, tmp=tmp_path)
    off = {
        "trainer": trainer.bytes / max(peaks[phase] for phase in ("start", "step 2", "export", "save")) - 1,
        "engine": engine.bytes / served["full"] - 1,
        "weights": plan.weights_bytes / peaks["disk/weights"] - 1,
        "state": plan.state_bytes / peaks["disk/state"] - 1,
    }
    print({what: f"{share:+.1%}" for what, share in off.items()}, peaks, served)
    assert math.fabs(off["trainer"]) < CLOSE
    assert math.fabs(off["engine"]) < CLOSE
    assert math.fabs(off["state"]) < 0.03
    # The tokenizer's files lie beside the weights.
    assert math.fabs(off["weights"]) < 0.08
