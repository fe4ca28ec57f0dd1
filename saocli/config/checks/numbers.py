"""The least that each number of a run may be."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from operator import attrgetter
from types import MappingProxyType

from saocli.config.checks.problem import Problem
from saocli.config.run import RunConfig

# The least that each number may be.
LEAST: Mapping[str, float] = MappingProxyType(
    {
        "batch_size": 1,
        "max_staleness": 0,
        "context_length": 2,
        "steps": 1,
        "arm.window": 1,
        "trainer.ranks": 1,
        "trainer.tensor_parallel": 1,
        "trainer.threads": 1,
        "trainer.global_batch_size": 1,
        "trainer.micro_batch_size": 1,
        "trainer.actor_lr": 0,
        "trainer.critic_lr": 0,
        "trainer.lr_decay_steps": 0,
        "trainer.critic_updates": 1,
        "trainer.critic_warmup_steps": 0,
        "trainer.adam_beta1": 0,
        "trainer.adam_beta2": 0,
        "trainer.adam_eps": 0,
        "trainer.weight_decay": 0,
        "trainer.clip_grad": 0,
        "trainer.value_clip": 0,
        "trainer.head_chunk": 1,
        "trainer.start_timeout_s": 0,
        "trainer.restarts": 0,
        "trainer.guard.actor_grad_norm": 0,
        "trainer.guard.critic_grad_norm": 0,
        "trainer.guard.rollback_after": 0,
        "engine.threads": 1,
        "engine.slots": 1,
        "engine.start_timeout_s": 0,
        "engine.restarts": 0,
        "engine.replicas": 1,
        "engine.tp": 1,
        "engine.dp": 1,
        "engine.publish_timeout_s": 0,
        "gateway.port": 0,
        "gateway.max_body_mb": 0,
        "gateway.max_connections": 1,
        "gateway.max_generations": 1,
        "gateway.max_outstanding": 0,
        "gateway.receipt_ttl_s": 0,
        "tasks.count": 0,
        "tasks.attempts": 1,
        "tasks.max_tokens": 1,
        "tasks.temperature": 0,
        "tasks.concurrency": 1,
        "tasks.feedback_s": 0,
        "tasks.feedback_sigma": 0,
        "tasks.grade_timeout_s": 0,
        "tasks.eval.samples": 0,
        "tasks.eval.temperature": 0,
        "tasks.eval.concurrency": 1,
        "metrics.rolling_rollouts": 1,
        "releases.checkpoint_every": 0,
        "releases.keep_last": 1,
        "releases.keep_every": 0,
        "compare.rollouts": 1,
        "compare.seeds": 1,
        "machine.gpus": 1,
    }
)


def numbers(config: RunConfig) -> Iterator[Problem]:
    for key, least in LEAST.items():
        value = attrgetter(key)(config)
        if value is not None and not (math.isfinite(value) and value >= least):
            yield Problem(f"{key} is {value}", f"it must be a finite number, at least {least:g}")
