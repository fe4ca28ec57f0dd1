"""The trainer's whole state on disk: actor, critic if there is one, their optimizers, schedule position, RNG."""

from __future__ import annotations

import json
import queue
from pathlib import Path

import torch
from megatron.core import dist_checkpointing
from megatron.core.dist_checkpointing.core import CheckpointingException
from megatron.core.dist_checkpointing.strategies import filesystem_async
from megatron.core.dist_checkpointing.strategies.torch import TorchDistSaveShardedStrategy
from torch.distributed.checkpoint.api import CheckpointException

from saocli.errors import TrainerError
from saocli.stored import MARKER
from saocli.trainer.megatron.atomic import is_writer, replacing
from saocli.trainer.megatron.learner import Learner
from saocli.trainer.megatron.memory import release
from saocli.trainer.megatron.step import Training

# Loading at another number of ranks or tensor-parallel size reshards the tensors.
FORMAT = ("torch_dist", 1)


def save(training: Training, folder: Path) -> None:
    """Write the state; `folder` exists only once it is complete. Collective. Raises TrainerError.

    `folder/actor` and `folder/critic` are Megatron checkpoints, written one after the other: Megatron copies the gated
    feed-forward weights and their moments while it writes them.
    """
    # Megatron collects its writers' results through a queue in a process of its own, which would import all of this
    # again; the writers report through this process, so an in-process queue does.
    filesystem_async._results_queue = queue.Queue()
    with replacing(folder) as rough:
        for name, learner in _learners(training).items():
            release()
            if is_writer():
                (rough / name).mkdir()
            dist_checkpointing.save(
                {**learner.sharded_state(loading=False), "common": {"position": training.position, "rng": _rng()}},
                str(rough / name),
                sharded_strategy=TorchDistSaveShardedStrategy(*FORMAT, thread_count=1),
            )
        if is_writer():
            (rough / MARKER).write_text(json.dumps({"position": training.position}) + "\n")
    release()


def load(training: Training, folder: Path) -> None:
    """Restore what `save` wrote, bit for bit. Collective. Raises TrainerError for a folder that does not fit."""
    if not (folder / MARKER).is_file():
        raise TrainerError(f"{folder} is not a complete trainer state", fix="resume from a release that has one")
    stored, learners = {path.name for path in folder.iterdir() if path.is_dir()}, _learners(training)
    if stored != learners.keys():
        raise TrainerError(
            f"{folder} holds {' and '.join(sorted(stored))}, this arm trains {' and '.join(sorted(learners))}",
            fix="resume with the arm that wrote it",
        )
    for name, learner in learners.items():
        try:
            state = dist_checkpointing.load(learner.sharded_state(loading=True), str(folder / name))
        except (OSError, CheckpointingException, CheckpointException) as error:
            raise TrainerError(
                f"{folder / name} does not fit this trainer: {error}", fix="resume with the model and arm that wrote it"
            ) from error
        learner.load_state(state)
        training.position = state["common"]["position"]
        _set_rng(state["common"]["rng"])
        del state
        release()


def _learners(training: Training) -> dict[str, Learner]:
    learners = {"actor": training.actor.learner}
    if training.critic is not None:
        learners["critic"] = training.critic.learner
    return learners


def _rng() -> dict[str, torch.Tensor]:
    states = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.get_rng_state()
    return states


def _set_rng(states: dict[str, torch.Tensor]) -> None:
    torch.set_rng_state(states["cpu"])
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"])
