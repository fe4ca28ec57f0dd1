"""Gradients that are not taken: nothing moves, the step says why."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from trainerkit import (
    QUICK,
    SAO,
    build_training,
    largest_difference,
    make_model,
    megatron_process,
    mixed_batch,
    reference,
    weights,
)

from saocli.config.trainer import GuardConfig
from saocli.trainer.megatron.guard import refusal
from saocli.trainer.messages import WorkerSetup, setup_from_json, setup_to_json
from saocli.types import Batch, StepOutput

Run = Callable[..., Any]


@pytest.mark.parametrize(
    ("loss", "norm", "bound", "reason"),
    [
        (0.5, 1.0, None, None),
        (0.5, 1.0, 1.0, None),
        (0.5, math.nextafter(1.0, 2.0), 1.0, "spike_actor"),
        (0.5, 1e30, None, None),
        (0.5, math.nan, None, "nonfinite_gradient_actor"),
        (0.5, math.inf, 1.0, "nonfinite_gradient_actor"),
        (math.nan, 1.0, None, "nonfinite_loss_actor"),
        (None, 0.0, 0.0, None),
    ],
)
def test_what_is_refused(loss: float | None, norm: float, bound: float | None, reason: str | None) -> None:
    assert refusal("actor", loss=loss, grad_norm=norm, bound=bound) == reason


def test_the_guard_reaches_the_worker() -> None:
    config = dataclasses.replace(QUICK, guard=GuardConfig(actor_grad_norm=2.0, rollback_after=3))
    setup = WorkerSetup(
        trainer=config, arm=SAO, model_folder="m", context_length=8, seed=0, host="h", port=1, shares_gpus=False
    )
    assert setup_from_json(setup_to_json(setup)) == setup


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    with megatron_process() as run:
        yield run


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("llama"))


def guarded(folder: Path, guard: GuardConfig, batch: Batch) -> tuple[list[StepOutput], list[float], list[int]]:
    """A refused step, then the same one without the guard and after it: outputs, largest changes, positions."""
    from saocli.trainer.megatron.step import train_step

    training = build_training(folder, dataclasses.replace(QUICK, weight_decay=0.1, guard=guard))
    learners = (training.actor.learner, training.critic.learner)
    outputs, moved, positions = [], [], []
    for config in (training.config, dataclasses.replace(training.config, guard=GuardConfig())):
        training.config = config
        before = [weights(learner) for learner in learners]
        outputs.append(train_step(training, batch))
        moved.append(max(largest_difference(old, weights(one)) for old, one in zip(before, learners, strict=True)))
        positions.append(training.position)
    fresh = build_training(folder, dataclasses.replace(QUICK, weight_decay=0.1))
    train_step(fresh, batch)
    moved.append(largest_difference(weights(fresh.actor.learner), weights(learners[0])))
    return outputs, moved, positions


@pytest.mark.parametrize("part", ["actor", "critic"])
def test_a_spike_moves_nothing_and_leaves_no_trace(run: Run, llama: Path, part: str) -> None:
    guard = GuardConfig(**{f"{part}_grad_norm": 1e-3})
    (refused, taken), moved, positions = run(guarded, llama, guard, mixed_batch(reference(llama)))
    assert refused.noop_reason == f"spike_{part}"
    assert refused.metrics["guard/refused"] == 1.0
    assert refused.metrics[f"{part}/grad_norm"] > 1e-3
    assert refused.metrics["sao/critic_updates"] == 0.0
    assert taken.noop_reason is None
    assert "guard/refused" not in taken.metrics
    assert moved[0] == 0.0 < moved[1]
    assert positions == [0, 1]
    assert moved[2] == 0.0, "as if the refused step had never been asked for"
