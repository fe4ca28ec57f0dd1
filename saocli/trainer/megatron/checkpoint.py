"""The trainer's whole state on disk: actor, critic, both optimizers, schedule position, RNG."""

from __future__ import annotations

import json
import queue
from pathlib import Path
from typing import Any

import torch
from megatron.core import dist_checkpointing
from megatron.core.dist_checkpointing.core import CheckpointingException
from megatron.core.dist_checkpointing.strategies import filesystem_async
from megatron.core.dist_checkpointing.strategies.torch import TorchDistSaveShardedStrategy

from saocli.errors import TrainerError
from saocli.trainer.megatron.atomic import MARKER, is_writer, replacing
from saocli.trainer.megatron.step import Training

# Loading at another number of ranks or tensor-parallel size reshards the tensors.
FORMAT = ("torch_dist", 1)


def save(training: Training, folder: Path) -> None:
    """Write the state; `folder` exists only once it is complete. Collective. Raises TrainerError."""
    # Megatron collects its writers' results through a queue in a process of its own, which would import all of this
    # again; the writers report through this process, so an in-process queue does.
    filesystem_async._results_queue = queue.Queue()
    with replacing(folder) as rough:
        dist_checkpointing.save(
            _sharded(training, loading=False) | {"common": {"position": training.position, "rng": _rng()}},
            str(rough),
            sharded_strategy=TorchDistSaveShardedStrategy(*FORMAT, thread_count=1),
        )
        if is_writer():
            (rough / MARKER).write_text(json.dumps({"position": training.position}) + "\n")


def load(training: Training, folder: Path) -> None:
    """Restore what `save` wrote, bit for bit. Collective. Raises TrainerError for a folder without its marker."""
    if not (folder / MARKER).is_file():
        raise TrainerError(f"{folder} is not a complete trainer state", fix="resume from a release that has one")
    try:
        state = dist_checkpointing.load(_sharded(training, loading=True), str(folder))
    except (OSError, CheckpointingException) as error:
        raise TrainerError(
            f"{folder} does not fit this trainer: {error}", fix="resume with the model and arm that wrote it"
        ) from error
    training.actor.learner.load_state("actor", state)
    if training.critic is not None:
        training.critic.learner.load_state("critic", state)
    training.position = state["common"]["position"]
    _set_rng(state["common"]["rng"])


def _sharded(training: Training, *, loading: bool) -> dict[str, Any]:
    state = training.actor.learner.sharded_state("actor", loading=loading)
    if training.critic is not None:
        state |= training.critic.learner.sharded_state("critic", loading=loading)
    return state


def _rng() -> dict[str, torch.Tensor]:
    states = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.get_rng_state()
    return states


def _set_rng(states: dict[str, torch.Tensor]) -> None:
    torch.set_rng_state(states["cpu"])
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"])
