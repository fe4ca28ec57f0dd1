"""One training step (arXiv 2607.07508 §3): values, advantages, critic and actor gradients, then the updates.

Every gradient that decides whether the step happens is there before any weight moves, so a step that is refused leaves
everything as it was: weights, moments, schedule.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from saocli.arms.base import Arm
from saocli.config.trainer import LrDecay, TrainerConfig
from saocli.trainer.megatron import ranks
from saocli.trainer.megatron.actor import Actor
from saocli.trainer.megatron.critic import Critic
from saocli.trainer.megatron.guard import refusal
from saocli.trainer.megatron.record import Record
from saocli.trainer.megatron.shard import Shard
from saocli.types import Batch, StepOutput


@dataclass(kw_only=True)
class Training:
    """What a step works on; `position` counts the steps that moved weights, and drives the schedule."""

    actor: Actor
    critic: Critic | None  # None for arms without one
    arm: Arm
    config: TrainerConfig
    device: torch.device
    position: int = 0

    def lr(self, peak: float) -> float:
        """`peak`, or its linear way to 0 over `lr_decay_steps`."""
        if self.config.lr_decay is LrDecay.CONSTANT:
            return peak
        return peak * max(0.0, 1.0 - self.position / self.config.lr_decay_steps)


@dataclass(kw_only=True)
class CriticPass:
    """What the batch's first pass through the critic gave."""

    targets: list[torch.Tensor]  # [N] per micro-batch
    seen: list[torch.Tensor]  # [N] per micro-batch, the values before this batch's updates
    values: list[torch.Tensor]  # the same, [T] per rollout of the whole batch
    grad_norm: float


def train_step(training: Training, batch: Batch) -> StepOutput:
    """Train on exactly these rollouts. Every rank calls it with the same batch and returns the same output."""
    actor, critic, arm, config = training.actor, training.critic, training.arm, training.config
    record = Record(step=batch.step)
    shard = Shard(batch.samples, micro_batch_size=config.micro_batch_size, device=training.device)
    if shard.tokens == 0:
        return record.noop("no_action_tokens")

    # Values from before this batch's updates, and with them the critic's first gradient.
    first = _first_critic_pass(critic, arm, shard, record) if critic is not None else None

    # Advantages once per batch, before any masking.
    estimates = arm.advantages(shard.rollouts(first.values if first else None))
    advantages = [estimate.advantages for estimate in estimates]
    idle = _actor_idle(training, batch, advantages)
    if idle is not None and critic is None:
        return record.noop(idle)
    actor_trains = idle is None

    # The policy's gradient. A critic-only run starts with a look at the engine's log-probs against ours, no more.
    actor_norm = 0.0
    if actor_trains or batch.step == 1:
        with record.timed("time/actor_s"):
            tally = ranks.pooled(
                actor.accumulate(
                    shard.micros, shard.per_micro(advantages), arm, denominator=shard.tokens, backward=actor_trains
                )
            )
            actor_norm = actor.learner.finish_backward() if actor_trains else 0.0
        record.actor_pass(tally, actor_norm if actor_trains else None, response_tokens=shard.response_tokens)
        # Tokens may be kept that have no advantage, those of a uniform group: the gradient is 0 all the same.
        if actor_trains and (float(tally.sums["kept_tokens"]) == 0 or actor_norm == 0.0):
            return record.noop("every_token_masked")

    if (reason := _refused(training, record, first, actor_norm if actor_trains else None)) is not None:
        return record.refused(reason)

    # The updates: the critic K times, then the actor.
    if critic is not None and first is not None:
        with record.timed("time/critic_s"):
            updates = _update_critic(critic, first, shard, config, lr=training.lr(config.critic_lr))
        record.metrics["sao/critic_updates"] = float(updates)
    if actor_trains:
        with record.timed("time/actor_s"):
            actor.learner.update(lr=training.lr(config.actor_lr), grad_norm=actor_norm)
    training.position += 1
    return record.trained(actor_idle=idle)


def _refused(training: Training, record: Record, first: CriticPass | None, actor_norm: float | None) -> str | None:
    """Why the guard refuses this step's gradients, if it does; None for a model that has none."""
    metrics, guard = record.metrics, training.config.guard
    passes = (
        ("critic", metrics["critic/loss"], first.grad_norm if first else None, guard.critic_grad_norm),
        ("actor", metrics["pg_loss"], actor_norm, guard.actor_grad_norm),
    )
    reasons = (
        refusal(model, loss=loss, grad_norm=norm, bound=bound)
        for model, loss, norm, bound in passes
        if norm is not None
    )
    return next((reason for reason in reasons if reason is not None), None)


def _actor_idle(training: Training, batch: Batch, advantages: list[torch.Tensor]) -> str | None:
    """Why this batch gives the actor nothing to learn: an update on a gradient of 0 would move it by its momentum."""
    if training.critic is not None and batch.step <= training.config.critic_warmup_steps:
        return "critic_warmup"
    if not any(bool(advantage.any()) for advantage in advantages):
        return "uniform_group" if training.arm.grouped else "zero_advantage"
    return None


def _first_critic_pass(critic: Critic, arm: Arm, shard: Shard, record: Record) -> CriticPass:
    with record.timed("time/critic_s"):
        # Targets are λ = 1 returns, in which values cancel: zeros do for the ones that are not there yet.
        estimates = arm.advantages(shard.rollouts(shard.zeros()))
        targets = [estimate.targets for estimate in estimates if estimate.targets is not None]
        micro_targets = shard.per_micro(targets)
        seen, tally = critic.accumulate(shard.micros, micro_targets, None, denominator=shard.tokens)
        grad_norm = critic.learner.finish_backward()
        values = shard.gather(seen)
    record.critic_pass(ranks.pooled(tally), grad_norm, values=values, targets=targets, masks=shard.masks)
    return CriticPass(targets=micro_targets, seen=seen, values=values, grad_norm=grad_norm)


def _update_critic(critic: Critic, first: CriticPass, shard: Shard, config: TrainerConfig, *, lr: float) -> int:
    """Update on the first pass's gradient, then on those of K − 1 further passes; returns the updates made.

    A later pass whose gradient the guard refuses is left out, and with it the rest.
    """
    grad_norm = first.grad_norm
    for update in range(config.critic_updates):
        if update > 0:
            critic.accumulate(shard.micros, first.targets, first.seen, denominator=shard.tokens)
            grad_norm = critic.learner.finish_backward()
            if refusal("critic", loss=None, grad_norm=grad_norm, bound=config.guard.critic_grad_norm) is not None:
                return update
        critic.learner.update(lr=lr, grad_norm=grad_norm)
    return config.critic_updates
