"""One step against a plain re-implementation on transformers and torch.optim, and what must leave a step unmoved."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from trainerkit import (
    QUICK,
    SAO,
    build_training,
    hf_logprobs,
    largest_difference,
    make_model,
    make_sample,
    megatron_process,
    mixed_batch,
    reference,
    scattered,
    shifted,
    weights,
)

from saocli.config.trainer import DType, FreezeAttention, LrDecay, TrainerConfig
from saocli.types import Batch, StepOutput

Run = Callable[..., Any]
Weights = dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    with megatron_process() as run:
        yield run


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("llama"))


def steps(
    folder: Path, config: TrainerConfig, batches: list[Batch]
) -> tuple[list[StepOutput], list[Weights], list[Weights]]:
    """Outputs, and the actor's and critic's weights before the first step and after each."""
    from saocli.trainer.megatron.step import train_step

    training = build_training(folder, config)
    learners = (training.actor.learner, training.critic.learner)
    outputs, snapshots = [], [[weights(learner) for learner in learners]]
    for batch in batches:
        outputs.append(train_step(training, batch))
        snapshots.append([weights(learner) for learner in learners])
    return outputs, [pair[0] for pair in snapshots], [pair[1] for pair in snapshots]


def exported(folder: Path, config: TrainerConfig, batches: list[Batch]) -> Weights:
    """The actor after the batches, under its Hugging Face names."""
    from saocli.trainer.megatron.step import train_step

    training = build_training(folder, config)
    for batch in batches:
        train_step(training, batch)
    learner = training.actor.learner
    return {name: tensor.detach().clone() for name, tensor in learner.bridge.export_weights([learner.model])}


class Oracle:
    """The method once more, token by token, on a transformers model and a linear head."""

    def __init__(self, folder: Path, config: TrainerConfig) -> None:
        self.config = config
        self.actor = reference(folder)
        self.critic = reference(folder).model
        self.head = torch.nn.Linear(self.actor.config.hidden_size, 1, bias=False)
        torch.nn.init.zeros_(self.head.weight)
        adam: dict[str, Any] = {
            "betas": (config.adam_beta1, config.adam_beta2),
            "eps": config.adam_eps,
            "weight_decay": 0.0,
        }
        self.critic_parameters = [*self.critic.parameters(), *self.head.parameters()]
        self.critic_adam = torch.optim.AdamW(self.critic_parameters, lr=config.critic_lr, **adam)
        self.actor_adam = torch.optim.AdamW(self.actor.parameters(), lr=config.actor_lr, **adam)

    def values(self, sample: Any) -> torch.Tensor:
        ids = torch.tensor([sample.prompt_ids + sample.response_ids])
        hidden = self.critic(ids).last_hidden_state[0]
        return self.head(hidden)[len(sample.prompt_ids) - 1 : -1, 0]

    def step(self, batch: Batch) -> dict[str, float]:
        tokens = sum(sample.action_tokens for sample in batch.samples)
        with torch.no_grad():
            advantages = [self.advantages(sample, self.values(sample).tolist()) for sample in batch.samples]
        for _ in range(self.config.critic_updates):
            loss = sum(
                0.5 * m * (v - sample.score) ** 2
                for sample in batch.samples
                for v, m in zip(self.values(sample), sample.action_mask, strict=True)
            )
            self.apply(loss / tokens, self.critic_adam, self.critic_parameters)
        loss, kept = torch.zeros(()), 0
        for sample, advantage in zip(batch.samples, advantages, strict=True):
            logp = hf_logprobs(self.actor, list(sample.prompt_ids), list(sample.response_ids), sample.temperature)
            for t, m in enumerate(sample.action_mask):
                ratio = math.exp(logp[t].item() - sample.rollout_logprobs[t])
                if m and 0.7 < ratio < 6.0:
                    loss, kept = loss - ratio * advantage[t] * logp[t], kept + 1
        self.apply(loss / tokens, self.actor_adam, list(self.actor.parameters()))
        return {"pg_loss": loss.item() / tokens, "pg_clipfrac": 1 - kept / tokens}

    @staticmethod
    def advantages(sample: Any, values: list[float]) -> list[float]:
        actions = [t for t, m in enumerate(sample.action_mask) if m]
        lam = 1 - 1 / (SAO.lambda_alpha * len(actions))
        found, carried, following, reward = [0.0] * len(values), 0.0, 0.0, sample.score
        for t in reversed(actions):
            carried = reward + following - values[t] + lam * carried
            found[t], following, reward = carried, values[t], 0.0
        return found

    def apply(self, loss: torch.Tensor, adam: torch.optim.Optimizer, parameters: list[torch.Tensor]) -> None:
        adam.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, self.config.clip_grad)
        adam.step()


def test_three_steps_equal_a_plain_reimplementation(run: Run, llama: Path) -> None:
    # Adam divides by |gradient| at first: a large eps keeps rounding of tiny gradients out of the comparison.
    config = dataclasses.replace(QUICK, adam_eps=1e-3)
    model = reference(llama)
    batches = [mixed_batch(model, step) for step in (1, 2, 3)]
    batches[1:] = [scattered(batch, 2.5) for batch in batches[1:]]
    oracle = Oracle(llama, config)
    expected = [oracle.step(batch) for batch in batches]
    assert all(0.1 < numbers["pg_clipfrac"] < 0.9 for numbers in expected[1:])
    outputs, _, _ = run(steps, llama, config, batches)
    for output, numbers in zip(outputs, expected, strict=True):
        for name, value in numbers.items():
            assert output.metrics[name] == pytest.approx(value, abs=1e-5), (output.step, name)
    ours, theirs = run(exported, llama, config, batches), oracle.actor.state_dict()
    moved = reference(llama).state_dict()
    for name, tensor in ours.items():
        change = float((theirs[name] - moved[name]).norm())
        assert float((tensor - theirs[name]).norm()) < 1e-3 * change, name
    with torch.no_grad():
        expected_values = [float(v) for s in batches[0].samples for v in oracle.values(s)]
    assert outputs[-1].metrics["critic/value_mean"] != 0.0
    assert run(values_after, llama, config, batches) == pytest.approx(expected_values, abs=1e-4)


def values_after(folder: Path, config: TrainerConfig, batches: list[Batch]) -> list[float]:
    """The critic's values of every response token of the first batch, after all of them."""
    from saocli.trainer.megatron.data import collate
    from saocli.trainer.megatron.step import train_step

    training = build_training(folder, config)
    for batch in batches:
        train_step(training, batch)
    everything = [dataclasses.replace(s, action_mask=(1,) * len(s.response_ids)) for s in batches[0].samples]
    micro = collate(everything, range(len(everything)), torch.device("cpu"))
    return training.critic.values(micro).tolist()


def test_first_step_is_on_policy(run: Run, llama: Path) -> None:
    (output,), _, _ = run(steps, llama, QUICK, [mixed_batch(reference(llama))])
    assert output.actor_trained
    assert output.metrics["train_rollout_logprob_abs_diff"] <= 1e-4
    assert output.metrics["train_rollout_logprob_abs_diff_max"] <= 1e-4
    assert output.metrics["pg_clipfrac"] == 0.0
    assert output.metrics["ratio_mean"] == pytest.approx(1.0, abs=1e-5)
    # 29 action tokens of 34 response tokens.
    assert output.metrics["sao/effective_token_rate"] == pytest.approx(30 / 34)
    assert output.metrics["sao/critic_updates"] == 2.0


@pytest.mark.parametrize("size", [1, 3, 4])
def test_micro_batches_do_not_change_a_step(run: Run, llama: Path, size: int) -> None:
    config = dataclasses.replace(QUICK, adam_eps=1e-3)
    batches = [mixed_batch(reference(llama), step) for step in (1, 2)]
    _, actor, critic = run(steps, llama, config, batches)
    _, other_actor, other_critic = run(steps, llama, dataclasses.replace(config, micro_batch_size=size), batches)
    assert largest_difference(actor[-1], other_actor[-1]) < 1e-6
    assert largest_difference(critic[-1], other_critic[-1]) < 1e-6
    assert largest_difference(actor[-1], actor[0]) > 1e-4


def test_the_same_steps_give_the_same_bits(run: Run, llama: Path) -> None:
    batches = [mixed_batch(reference(llama), step) for step in (1, 2)]
    first, second = (run(steps, llama, QUICK, batches) for _ in range(2))
    for one, other in zip(first[1] + first[2], second[1] + second[2], strict=True):
        assert largest_difference(one, other) == 0.0


def test_learning_rate_zero_leaves_every_byte(run: Run, llama: Path) -> None:
    config = dataclasses.replace(QUICK, actor_lr=0.0, critic_lr=0.0)
    outputs, actor, critic = run(steps, llama, config, [mixed_batch(reference(llama), step) for step in (1, 2, 3)])
    assert all(output.actor_trained for output in outputs)
    assert all(largest_difference(actor[0], later) == 0.0 for later in actor)
    assert all(largest_difference(critic[0], later) == 0.0 for later in critic)


def test_critic_trains_alone_through_the_warmup(run: Run, llama: Path) -> None:
    config = dataclasses.replace(QUICK, critic_warmup_steps=2)
    outputs, actor, critic = run(steps, llama, config, [mixed_batch(reference(llama), step) for step in (1, 2, 3)])
    assert [output.actor_trained for output in outputs] == [False, False, True]
    assert [output.noop_reason for output in outputs] == [None] * 3
    assert largest_difference(actor[0], actor[1]) == largest_difference(actor[0], actor[2]) == 0.0
    assert largest_difference(actor[2], actor[3]) > 1e-4
    assert all(largest_difference(before, after) > 1e-4 for before, after in pairwise(critic))
    assert outputs[0].metrics["pg_clipfrac"] == 0.0
    assert outputs[0].metrics["train_rollout_logprob_abs_diff"] <= 1e-4
    assert outputs[1].metrics["pg_clipfrac"] is None
    assert outputs[2].metrics["train_rollout_logprob_abs_diff"] <= 1e-4
    losses = [output.metrics["critic/loss"] for output in outputs]
    assert losses[0] > losses[1] > losses[2]
    assert outputs[0].metrics["critic/value_mean"] == 0.0
    assert [m.count for m in outputs[0].moments] == [9, 5, 11, 5]


def test_a_batch_masked_whole_moves_nothing(run: Run, llama: Path) -> None:
    config = dataclasses.replace(QUICK, weight_decay=0.1, lr_decay=LrDecay.LINEAR, lr_decay_steps=4)
    batch = mixed_batch(reference(llama))
    for nats in (100.0, -100.0, -math.inf):
        # The step before fills the moments, so that a step on zero gradients would show.
        outputs, actor, critic = run(steps, llama, config, [batch, shifted(dataclasses.replace(batch, step=2), nats)])
        assert outputs[0].actor_trained
        assert outputs[1].noop_reason == "every_token_masked"
        assert outputs[1].metrics["pg_clipfrac"] == 1.0
        assert outputs[1].metrics["pg_loss"] == 0.0
        assert outputs[1].metrics["sao/effective_token_rate"] == 0.0
        assert outputs[1].metrics["sao/critic_updates"] == outputs[1].metrics["sao/actor_trained"] == 0.0
        assert largest_difference(actor[1], actor[2]) == largest_difference(critic[1], critic[2]) == 0.0


def test_zero_advantages_leave_the_actor_alone_and_train_the_critic(run: Run, llama: Path) -> None:
    batch = mixed_batch(reference(llama))
    # A new critic says 0 everywhere, so scores of 0 are just what it expects.
    zeros = dataclasses.replace(batch, samples=tuple(dataclasses.replace(s, score=0.0) for s in batch.samples))
    config = dataclasses.replace(QUICK, weight_decay=0.1)
    (output,), actor, _ = run(steps, llama, config, [zeros])
    assert (output.actor_idle, output.actor_trained, output.noop_reason) == ("zero_advantage", False, None)
    assert output.metrics["sao/critic_updates"] == 2.0
    assert largest_difference(actor[0], actor[1]) == 0.0


def test_a_noop_does_not_advance_the_schedule(run: Run, llama: Path) -> None:
    config = dataclasses.replace(QUICK, lr_decay=LrDecay.LINEAR, lr_decay_steps=2)
    batch = mixed_batch(reference(llama))
    _, with_noop, _ = run(steps, llama, config, [batch, shifted(batch, 100.0), batch])
    _, without, _ = run(steps, llama, config, [batch, batch, batch])
    assert largest_difference(with_noop[3], without[2]) == 0.0
    # Two steps brought the rate to 0.
    assert largest_difference(without[2], without[3]) == 0.0


def test_a_batch_without_action_tokens_is_a_noop(run: Run, llama: Path) -> None:
    sample = make_sample(reference(llama), 1, response=3, observations=(0, 1, 2))
    (output,), actor, _ = run(steps, llama, QUICK, [Batch(step=1, samples=(sample,))])
    assert (output.noop_reason, output.actor_trained, output.metrics["pg_loss"]) == ("no_action_tokens", False, None)
    assert largest_difference(actor[0], actor[1]) == 0.0


def nonfinite(folder: Path, part: str, batch: Batch) -> tuple[StepOutput, float]:
    """A step in which one gradient of `part` overflows; the largest change in actor and critic."""
    from saocli.trainer.megatron.step import train_step

    training = build_training(folder, dataclasses.replace(QUICK, weight_decay=0.1))
    getattr(training, part).learner.model.decoder.final_layernorm.weight.register_hook(lambda g: g * torch.inf)
    learners = (training.actor.learner, training.critic.learner)
    before = [weights(learner) for learner in learners]
    output = train_step(training, batch)
    moved = [largest_difference(old, weights(learner)) for old, learner in zip(before, learners, strict=True)]
    return output, max(moved)


@pytest.mark.parametrize("part", ["actor", "critic"])
def test_a_nonfinite_gradient_is_refused(run: Run, llama: Path, part: str) -> None:
    output, moved = run(nonfinite, llama, part, mixed_batch(reference(llama)))
    assert output.noop_reason == f"nonfinite_gradient_{part}"
    assert not output.actor_trained
    assert moved == 0.0
    assert all(value is None or math.isfinite(value) for value in output.metrics.values())


def test_frozen_attention_stays_and_the_rest_learns(run: Run, llama: Path) -> None:
    config = dataclasses.replace(QUICK, freeze_attention=FreezeAttention.ALWAYS)
    _, _, critic = run(steps, llama, config, [mixed_batch(reference(llama), step) for step in (1, 2)])
    for name, before in critic[0].items():
        assert torch.equal(before, critic[-1][name]) == ("self_attention" in name), name


def test_observation_tokens_change_nothing(run: Run, llama: Path) -> None:
    sample = make_sample(reference(llama), 3, prompt=3, response=9, observations=(4, 5))
    noisy = dataclasses.replace(
        sample,
        rollout_logprobs=tuple(
            p if m else -50.0 for p, m in zip(sample.rollout_logprobs, sample.action_mask, strict=True)
        ),
    )
    (clean,), actor, _ = run(steps, llama, QUICK, [Batch(step=1, samples=(sample,))])
    (other,), other_actor, _ = run(steps, llama, QUICK, [Batch(step=1, samples=(noisy,))])
    assert largest_difference(actor[1], other_actor[1]) == 0.0
    assert clean.metrics["pg_clipfrac"] == other.metrics["pg_clipfrac"] == 0.0


def test_explained_variance_is_undefined_for_one_rollout(run: Run, llama: Path) -> None:
    (output,), _, _ = run(steps, llama, QUICK, [Batch(step=1, samples=(make_sample(reference(llama), 1),))])
    assert output.metrics["critic/explained_variance"] is None


def bf16_steps(folder: Path, batches: list[Batch]) -> tuple[list[StepOutput], set[torch.dtype], float, float]:
    from saocli.trainer.megatron.step import train_step

    training = build_training(folder, dataclasses.replace(QUICK, dtype=DType.BF16, actor_lr=1e-5))
    learner = training.actor.learner
    before = weights(learner)
    masters = [p.detach().clone() for p in learner.optimizer.get_parameters()]
    outputs = [train_step(training, batch) for batch in batches]
    moved = max(
        (m - p.detach()).abs().max().item() for m, p in zip(masters, learner.optimizer.get_parameters(), strict=True)
    )
    return outputs, {p.dtype for p in before.values()}, moved, largest_difference(before, weights(learner))


def test_bf16_trains_on_fp32_masters(run: Run, llama: Path) -> None:
    outputs, dtypes, masters_moved, _ = run(bf16_steps, llama, [mixed_batch(reference(llama), s) for s in (1, 2)])
    assert dtypes == {torch.bfloat16}
    assert all(output.actor_trained for output in outputs)
    # The log-probs' softmax is fp32; what is left is bf16 rounding of weights and activations.
    assert outputs[0].metrics["train_rollout_logprob_abs_diff"] < 0.1
    # 1e-5 is far below bf16's resolution of weights near 0.1, and still arrives.
    assert masters_moved == pytest.approx(2e-5, rel=0.3)
