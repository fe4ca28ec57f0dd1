"""The trainer's whole state on disk: actor, critic if there is one, their optimizers, schedule position, RNG."""

from __future__ import annotations

import json
import queue
from functools import partial
from pathlib import Path
from typing import Any

import torch
from megatron.core import dist_checkpointing
from megatron.core.dist_checkpointing.core import CheckpointingException
from megatron.core.dist_checkpointing.strategies import filesystem_async
from megatron.core.dist_checkpointing.strategies.filesystem_async import FileSystemWriterAsync
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
    # Megatron's is a queue in a process of its own, which would import all of this again.
    filesystem_async._results_queue = queue.Queue()
    with replacing(folder) as rough:
        for name, learner in _learners(training).items():
            release()
            if is_writer():
                (rough / name).mkdir()
            dist_checkpointing.save(
                {**learner.sharded_state(loading=False), "common": {"position": training.position, "rng": _rng()}},
                str(rough / name),
                sharded_strategy=_Written(*FORMAT, thread_count=1),
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


class _Written(TorchDistSaveShardedStrategy):
    """Writes the files in this process.

    Megatron forks a writer for each and waits for it without end, also for one that was killed.
    """

    def save(self, sharded_state_dict: Any, checkpoint_dir: str | Path) -> None:
        request = self.async_save(sharded_state_dict, checkpoint_dir)
        if request.async_fn is not None:  # this rank has something to write
            transforms = request.async_fn.args[0]
            request = request._replace(async_fn=partial(_write, transforms))
        request.execute_sync()


def _write(transforms: list[Any], rank: int, buckets: list[Any], results: queue.Queue[Any]) -> None:
    """What `FileSystemWriterAsync.write_preloaded_data_multiproc` does: the outcome of each file, or what failed."""
    outcomes: dict[int, Any] = {}
    local: queue.Queue[Any] = queue.Queue()
    count: queue.Queue[int] = queue.Queue()
    for index, bucket in enumerate(buckets):
        count.put(index)
        FileSystemWriterAsync.write_preloaded_data(transforms, index, bucket, local, count, use_fsync=True)
        _, outcomes[index] = local.get()
        if isinstance(outcomes[index], Exception):
            results.put(outcomes[index])
            return
    results.put(outcomes)


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
