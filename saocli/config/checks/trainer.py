"""The trainer's ranks and its schedule."""

from __future__ import annotations

from collections.abc import Iterator

from saocli.config.checks.problem import Problem
from saocli.config.run import RunConfig
from saocli.config.trainer import LrDecay


def parallel(config: RunConfig) -> Iterator[Problem]:
    trainer = config.trainer
    if trainer.ranks % trainer.tensor_parallel:
        yield Problem(
            f"trainer.ranks is {trainer.ranks}, not a multiple of trainer.tensor_parallel, {trainer.tensor_parallel}",
            "each model copy takes trainer.tensor_parallel ranks",
        )
        return
    copies = trainer.ranks // trainer.tensor_parallel
    if trainer.global_batch_size % copies:
        yield Problem(
            f"trainer.global_batch_size is {trainer.global_batch_size}, not a multiple of the data-parallel size "
            f"{copies} (trainer.ranks={trainer.ranks} / trainer.tensor_parallel={trainer.tensor_parallel})",
            "each copy trains the same number of rollouts",
        )


def schedule(config: RunConfig) -> Iterator[Problem]:
    trainer = config.trainer
    if trainer.lr_decay is LrDecay.LINEAR and trainer.lr_decay_steps == 0:
        yield Problem(
            "trainer.lr_decay is linear but trainer.lr_decay_steps is 0",
            "give the number of steps until the learning rate is 0, or trainer.lr_decay=constant",
        )
    for key, beta in (("trainer.adam_beta1", trainer.adam_beta1), ("trainer.adam_beta2", trainer.adam_beta2)):
        if beta >= 1:
            yield Problem(f"{key} is {beta}", "it must be below 1")
