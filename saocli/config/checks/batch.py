"""A step's batch and what must fit into it."""

from __future__ import annotations

from collections.abc import Iterator

from saocli.config.checks.problem import Problem
from saocli.config.run import RunConfig


def batch(config: RunConfig) -> Iterator[Problem]:
    trainer = config.trainer
    if config.batch_size != trainer.global_batch_size:
        yield Problem(
            f"batch_size is {config.batch_size} but trainer.global_batch_size is {trainer.global_batch_size}",
            "a step trains exactly the batch that was taken: set both to the same number",
        )
    if trainer.micro_batch_size > trainer.global_batch_size:
        yield Problem(
            f"trainer.micro_batch_size is {trainer.micro_batch_size}, "
            f"more than trainer.global_batch_size, {trainer.global_batch_size}",
            f"set trainer.micro_batch_size to at most {trainer.global_batch_size}",
        )


def lengths(config: RunConfig) -> Iterator[Problem]:
    if config.tasks.max_tokens >= config.context_length:
        yield Problem(
            f"tasks.max_tokens is {config.tasks.max_tokens} but context_length is {config.context_length}",
            "that leaves no room for a prompt: lower tasks.max_tokens or raise context_length",
        )
