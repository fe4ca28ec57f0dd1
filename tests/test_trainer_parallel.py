"""Two ranks against one: the same weights, data-parallel or tensor-parallel, and state that moves between them."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from trainerkit import QUICK, SAO, make_model, make_sample, mixed_batch, reference, scattered

from saocli.config.arm import AdvantageNorm
from saocli.errors import TrainerError
from saocli.trainer.remote import RemoteTrainer
from saocli.types import Batch, StepOutput

pytestmark = pytest.mark.slow
# A large eps keeps rounding of tiny gradients, which Adam would divide by, out of the comparison.
ONE = dataclasses.replace(QUICK, adam_eps=1e-3, critic_warmup_steps=1)
WHITENED = dataclasses.replace(SAO, advantage_norm=AdvantageNorm.BATCH)
LAYOUTS = {
    "data parallel": dataclasses.replace(ONE, ranks=2),
    "tensor parallel": dataclasses.replace(ONE, ranks=2, tensor_parallel=2),
}
TIMES = {"time/critic_s", "time/actor_s"}


async def trained(
    folder: Path, config: object, batches: list[Batch], tmp: Path, resume: Path | None = None
) -> tuple[list[StepOutput], dict[str, torch.Tensor]]:
    """Outputs and exported weights after the batches; the state is left in `tmp / "state"`."""
    trainer = await RemoteTrainer.start(
        config=config, arm=WHITENED, model_folder=folder, context_length=256, seed=3, log=tmp / "logs" / "trainer.log"
    )
    try:
        if resume is not None:
            await trainer.load(resume)
        outputs = [await trainer.step(batch) for batch in batches]
        await trainer.export(tmp / "weights")
        await trainer.save(tmp / "state")
        with pytest.raises(TrainerError, match="r9"):
            await trainer.step(Batch(step=9, samples=(make_sample(reference(folder), 9, prompt=250, response=100),)))
        return outputs, load_file(tmp / "weights" / "model.safetensors")
    finally:
        await trainer.close()


@pytest.mark.parametrize(("layout", "kind"), [("data parallel", "llama"), ("tensor parallel", "qwen3")])
async def test_two_ranks_equal_one(tmp_path: Path, layout: str, kind: str) -> None:
    # 131 words: tensor parallelism pads the vocabulary.
    folder = make_model(tmp_path / "model", kind, tied=layout == "data parallel")
    model = reference(folder)
    batches = [scattered(mixed_batch(model, step), 1.5) for step in (1, 2, 3)]
    # One rollout, so that the second data-parallel rank has nothing to do.
    batches.append(dataclasses.replace(batches[0], step=4, samples=batches[0].samples[:1]))
    outputs, weights = await trained(folder, ONE, batches, tmp_path / "one")
    parallel_outputs, parallel_weights = await trained(folder, LAYOUTS[layout], batches, tmp_path / "two")
    for one, two in zip(outputs, parallel_outputs, strict=True):
        assert one.actor_trained == two.actor_trained
        assert {n for n, v in one.metrics.items() if v is None} == {n for n, v in two.metrics.items() if v is None}
        for name in one.metrics.keys() - TIMES:
            if one.metrics[name] is not None:
                assert two.metrics[name] == pytest.approx(one.metrics[name], rel=1e-4, abs=2e-6), (one.step, name)
        assert [m.count for m in one.moments] == [m.count for m in two.moments]
    assert weights.keys() == parallel_weights.keys()
    for name, tensor in weights.items():
        assert tensor.shape == parallel_weights[name].shape
        assert float((tensor - parallel_weights[name]).abs().max()) < 2e-6, name
    if layout == "data parallel":
        # State written by two ranks goes on under one.
        _, resumed = await trained(folder, ONE, batches[3:], tmp_path / "resumed", resume=tmp_path / "two" / "state")
        _, straight = await trained(folder, ONE, batches[3:], tmp_path / "straight", resume=tmp_path / "one" / "state")
        assert max(float((resumed[n] - straight[n]).abs().max()) for n in resumed) < 2e-6


async def test_ranks_that_tensor_parallelism_does_not_divide_are_refused(tmp_path: Path) -> None:
    folder = make_model(tmp_path / "model")
    with pytest.raises(TrainerError, match="no multiple of tensor_parallel=2"):
        await trained(folder, dataclasses.replace(ONE, tensor_parallel=2), [], tmp_path)
