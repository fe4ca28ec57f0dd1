"""The critic-free arms on the trainer: their step against a plain one on transformers, and what leaves it unmoved."""

from __future__ import annotations

import dataclasses
import json
import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from trainerkit import (
    QUICK,
    build_training,
    hf_logprobs,
    largest_difference,
    make_model,
    megatron_process,
    mixed_batch,
    reference,
    scattered,
    shifted,
    weights,
)

from saocli.config.arm import ArmConfig
from saocli.config.trainer import LrDecay, TrainerConfig
from saocli.errors import ConfigError, TrainerError
from saocli.trainer.messages import batch_from_json, batch_to_json
from saocli.trainer.remote import RemoteTrainer
from saocli.types import Batch, StepOutput

Run = Callable[..., Any]
Weights = dict[str, torch.Tensor]

GRPO_DIS = ArmConfig(name="grpo_dis", eps_low=0.3, eps_high=5.0, group_size=2)
GRPO = ArmConfig(name="grpo", eps_low=0.2, eps_high=0.28, group_size=2)
RUNNING_MEAN = ArmConfig(name="running_mean", eps_low=0.3, eps_high=5.0)
# A large eps keeps rounding of tiny gradients, which Adam would divide by, out of the comparison. Decay and warm-up
# would show where a step is made that should not be, or is not made that should.
CONFIG = dataclasses.replace(
    QUICK,
    adam_eps=1e-3,
    weight_decay=0.1,
    critic_warmup_steps=10,
    lr_decay=LrDecay.LINEAR,
    lr_decay_steps=10,
)


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    with megatron_process() as run:
        yield run


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("llama"))


def with_scores(batch: Batch, scores: tuple[float, ...]) -> Batch:
    """The batch as two groups of two, the first and the third rollout being of one prompt."""
    return dataclasses.replace(
        batch,
        samples=tuple(
            dataclasses.replace(sample, score=score, group=group)
            for sample, score, group in zip(batch.samples, scores, "abab", strict=True)
        ),
    )


def with_history(batch: Batch, *histories: tuple[float, ...]) -> Batch:
    samples = (dataclasses.replace(s, history=h) for s, h in zip(batch.samples, histories, strict=True))
    return dataclasses.replace(batch, samples=tuple(samples))


def state(training: Any) -> Weights:
    """Weights, Adam's moments and the schedule."""
    adam = training.actor.learner.optimizer.optimizer.state
    moments = {
        f"{i}.{name}": value.detach().clone().reshape(-1)
        for i, entry in enumerate(adam.values())
        for name, value in entry.items()
    }
    return weights(training.actor.learner) | moments | {"position": torch.tensor([float(training.position)])}


def steps(
    folder: Path, arm: ArmConfig, batches: list[Batch], config: TrainerConfig = CONFIG
) -> tuple[list[StepOutput], list[Weights]]:
    """Outputs, and the actor's whole state before the first step and after each."""
    from saocli.trainer.megatron.step import train_step

    training = build_training(folder, config, arm)
    assert training.critic is None
    outputs, snapshots = [], [state(training)]
    for batch in batches:
        outputs.append(train_step(training, batch))
        snapshots.append(state(training))
    return outputs, snapshots


def plain_advantages(arm: ArmConfig, batch: Batch) -> list[float]:
    if arm.name == "running_mean":
        return [s.score - sum(s.history) / len(s.history) if s.history else 0.0 for s in batch.samples]
    found = []
    for sample in batch.samples:
        a, b = (other.score for other in batch.samples if other.group == sample.group)
        # Of two numbers the n−1 standard deviation is |a − b|/√2.
        found.append((sample.score - (a + b) / 2) / (abs(a - b) / math.sqrt(2) + 1e-6))
    return found


class Plain:
    """The arm once more, token by token, on a transformers model and torch's AdamW."""

    def __init__(self, folder: Path, arm: ArmConfig) -> None:
        self.arm = arm
        self.model = reference(folder)
        self.adam = torch.optim.AdamW(
            self.model.parameters(),
            lr=CONFIG.actor_lr,
            betas=(CONFIG.adam_beta1, CONFIG.adam_beta2),
            eps=CONFIG.adam_eps,
            weight_decay=0.0,
        )

    def step(self, batch: Batch) -> dict[str, float]:
        tokens = sum(sample.action_tokens for sample in batch.samples)
        loss, kept = torch.zeros(()), 0
        for sample, advantage in zip(batch.samples, plain_advantages(self.arm, batch), strict=True):
            logp = hf_logprobs(self.model, list(sample.prompt_ids), list(sample.response_ids), sample.temperature)
            for t, action in enumerate(sample.action_mask):
                if action:
                    term, keeps = self.token(logp[t], sample.rollout_logprobs[t], advantage)
                    loss, kept = loss - term, kept + keeps
        self.adam.zero_grad()
        (loss / tokens).backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), CONFIG.clip_grad)
        self.adam.step()
        return {"pg_loss": loss.item() / tokens, "pg_clipfrac": 1 - kept / tokens}

    def token(self, logp: torch.Tensor, rollout_logp: float, advantage: float) -> tuple[torch.Tensor, bool]:
        ratio = (logp - rollout_logp).exp()
        low, high = 1 - self.arm.eps_low, 1 + self.arm.eps_high
        if self.arm.name == "grpo":
            clipped = ratio.item() > high if advantage > 0 else advantage < 0 and ratio.item() < low
            return torch.min(ratio * advantage, ratio.clamp(low, high) * advantage), not clipped
        keeps = low < ratio.item() < high
        return ratio.item() * advantage * logp * keeps, keeps


@pytest.mark.parametrize("arm", [GRPO_DIS, GRPO, RUNNING_MEAN], ids=lambda arm: arm.name)
def test_three_steps_equal_a_plain_reimplementation(run: Run, llama: Path, arm: ArmConfig) -> None:
    model = reference(llama)
    batches = [with_scores(mixed_batch(model, step), (1.0, 0.0, 0.25, 1.0)) for step in (1, 2, 3)]
    batches = [with_history(batch, (0.0, 1.0), (), (1.0,), (0.5, 0.5, 0.0)) for batch in batches]
    batches[1:] = [scattered(batch, 2.5 if arm is not GRPO else 0.6) for batch in batches[1:]]
    plain = Plain(llama, arm)
    constant = dataclasses.replace(CONFIG, weight_decay=0.0, lr_decay=LrDecay.CONSTANT)
    expected = [plain.step(batch) for batch in batches]
    assert all(0.1 < numbers["pg_clipfrac"] < 0.9 for numbers in expected[1:])
    outputs, ours = run(steps_exported, llama, arm, batches, constant)
    for output, numbers in zip(outputs, expected, strict=True):
        assert output.actor_trained
        assert output.noop_reason is output.actor_idle is None
        for name, value in numbers.items():
            assert output.metrics[name] == pytest.approx(value, abs=1e-5), (output.step, name)
    theirs, start = plain.model.state_dict(), reference(llama).state_dict()
    for name, tensor in ours.items():
        change = float((theirs[name] - start[name]).norm())
        assert float((tensor - theirs[name]).norm()) < 1e-3 * change, name


def steps_exported(
    folder: Path, arm: ArmConfig, batches: list[Batch], config: TrainerConfig
) -> tuple[list[StepOutput], Weights]:
    """Outputs, and the actor at the end under its Hugging Face names."""
    from saocli.trainer.megatron.step import train_step

    training = build_training(folder, config, arm)
    outputs = [train_step(training, batch) for batch in batches]
    learner = training.actor.learner
    return outputs, {name: t.detach().clone() for name, t in learner.bridge.export_weights([learner.model])}


def test_the_critics_warmup_and_metrics_are_not_theirs(run: Run, llama: Path) -> None:
    batch = with_scores(mixed_batch(reference(llama)), (1.0, 0.0, 0.0, 1.0))
    (output,), (before, after) = run(steps, llama, GRPO_DIS, [batch])
    assert output.actor_trained
    assert largest_difference(before, after) > 1e-4
    critic = {name: value for name, value in output.metrics.items() if name.startswith("critic/")}
    assert set(critic) >= {"critic/loss", "critic/explained_variance", "critic/value_mean", "critic/grad_norm"}
    assert set(critic.values()) == {None}
    assert output.metrics["sao/critic_updates"] == 0.0
    assert output.moments == ()
    assert output.metrics["actor/grad_norm"] > 0
    assert output.metrics["pg_clipfrac"] == 0.0


@pytest.mark.parametrize("arm", [GRPO_DIS, GRPO], ids=lambda arm: arm.name)
def test_uniform_groups_move_nothing(run: Run, llama: Path, arm: ArmConfig) -> None:
    model = reference(llama)
    # The step before fills the moments, so that a step on zero gradients would show.
    first = with_scores(mixed_batch(model, 1), (1.0, 0.0, 0.0, 1.0))
    uniform = with_scores(mixed_batch(model, 2), (1.0, 0.1, 1.0, 0.1))
    outputs, states = run(steps, llama, arm, [first, uniform])
    assert (outputs[1].noop_reason, outputs[1].actor_trained) == ("uniform_group", False)
    assert outputs[1].metrics["sao/actor_trained"] == 0.0
    assert all(torch.equal(states[1][name], states[2][name]) for name in states[1])
    assert largest_difference(states[0], states[1]) > 1e-4


def test_a_uniform_group_beside_a_masked_one_moves_nothing(run: Run, llama: Path) -> None:
    model = reference(llama)
    batch = with_scores(mixed_batch(model, 1), (1.0, 1.0, 0.0, 1.0))
    gone = shifted(batch, 100.0).samples
    # Group a is mixed and all of it is off the band; group b is uniform, on the band.
    batch = dataclasses.replace(batch, samples=(gone[0], batch.samples[1], gone[2], batch.samples[3]))
    outputs, states = run(steps, llama, GRPO_DIS, [with_scores(batch, (1.0, 0.0, 0.0, 1.0)), batch])
    assert outputs[0].actor_trained
    assert outputs[1].noop_reason == "every_token_masked"
    assert 0 < outputs[1].metrics["pg_clipfrac"] < 1
    assert all(torch.equal(states[1][name], states[2][name]) for name in states[1])


def test_order_and_micro_batches_do_not_change_a_step(run: Run, llama: Path) -> None:
    batch = scattered(with_scores(mixed_batch(reference(llama)), (1.0, 0.0, 0.25, 1.0)), 1.0)
    turned = dataclasses.replace(batch, samples=batch.samples[2:] + batch.samples[1::-1])
    for arm in (GRPO_DIS, GRPO):
        _, (start, one) = run(steps, llama, arm, [batch])
        _, (_, other) = run(steps, llama, arm, [turned], dataclasses.replace(CONFIG, micro_batch_size=3))
        assert largest_difference(one, other) < 1e-6
        assert largest_difference(one, start) > 1e-4


def test_the_running_mean_needs_a_history_to_move(run: Run, llama: Path) -> None:
    batch = mixed_batch(reference(llama))
    scores = [sample.score for sample in batch.samples]
    without, (before, after) = run(steps, llama, RUNNING_MEAN, [batch])
    assert (without[0].noop_reason, without[0].actor_trained) == ("zero_advantage", False)
    assert all(torch.equal(before[name], after[name]) for name in before)
    met, (before, after) = run(steps, llama, RUNNING_MEAN, [with_history(batch, *((score,) for score in scores))])
    assert met[0].noop_reason == "zero_advantage"
    given = batch_from_json(json.loads(json.dumps(batch_to_json(with_history(batch, (0.0,), (), (), ())))))
    assert given.samples[0].history == (0.0,)
    moved, (before, after) = run(steps, llama, RUNNING_MEAN, [given])
    assert moved[0].actor_trained
    assert largest_difference(before, after) > 1e-4


def round_trip(folder: Path, arm: ArmConfig, batches: list[Batch], where: Path) -> tuple[list[str], Weights, Weights]:
    """What a state's folder holds, and the actor's state after all batches: straight, and through that folder."""
    from saocli.trainer.megatron import checkpoint
    from saocli.trainer.megatron.step import train_step

    straight = build_training(folder, CONFIG, arm)
    train_step(straight, batches[0])
    checkpoint.save(straight, where)
    resumed = build_training(folder, CONFIG, arm)
    checkpoint.load(resumed, where)
    for training in (straight, resumed):
        for batch in batches[1:]:
            train_step(training, batch)
    return sorted(path.name for path in where.iterdir()), state(straight), state(resumed)


@pytest.mark.parametrize("arm", [GRPO_DIS, RUNNING_MEAN], ids=lambda arm: arm.name)
def test_state_without_a_critic_comes_back_bit_for_bit(run: Run, llama: Path, tmp_path: Path, arm: ArmConfig) -> None:
    batches = [with_scores(mixed_batch(reference(llama), step), (1.0, 0.0, 0.25, 1.0)) for step in (1, 2)]
    batches = [with_history(batch, (0.5,), (0.5,), (0.5,), (0.5,)) for batch in batches]
    held, straight, resumed = run(round_trip, llama, arm, batches, tmp_path / "state")
    assert "actor" in held
    assert "critic" not in held
    assert straight["position"] == 2.0
    assert straight.keys() == resumed.keys()
    assert all(torch.equal(straight[name], resumed[name]) for name in straight)


def processes_started_by_a_save(folder: Path, where: Path) -> list[str]:
    from saocli.trainer.megatron import checkpoint

    training = build_training(folder, CONFIG, GRPO_DIS)
    started: list[str] = []
    sys.addaudithook(lambda event, _: started.append(event) if event in {"os.fork", "subprocess.Popen"} else None)
    checkpoint.save(training, where)
    return started


def test_a_save_waits_for_no_process_that_could_be_killed(run: Run, llama: Path, tmp_path: Path) -> None:
    assert run(processes_started_by_a_save, llama, tmp_path / "state") == []


def test_the_base_model_gets_no_trainer(run: Run, llama: Path) -> None:
    with pytest.raises(TrainerError, match="arm base does not train"):
        run(build_training, llama, CONFIG, ArmConfig(name="base", eps_low=0.3, eps_high=5.0))
    with pytest.raises(ConfigError, match="soa"):
        run(build_training, llama, CONFIG, ArmConfig(name="soa", eps_low=0.3, eps_high=5.0))


async def remote(folder: Path, config: TrainerConfig, batches: list[Batch], log: Path) -> list[StepOutput]:
    trainer = await RemoteTrainer.start(
        config=config, arm=GRPO_DIS, model_folder=folder, context_length=256, seed=3, log=log
    )
    try:
        return [await trainer.step(batch) for batch in batches]
    finally:
        await trainer.close()


@pytest.mark.slow
async def test_two_data_parallel_ranks_see_whole_groups(llama: Path, tmp_path: Path) -> None:
    # Ranks take every other rollout: in the first batch each has a group, in the others half of both.
    model = reference(llama)
    batches = [scattered(with_scores(mixed_batch(model, step), (1.0, 0.0, 0.25, 1.0)), 1.0) for step in (1, 2, 3)]
    batches[1:] = [
        dataclasses.replace(batch, samples=tuple(batch.samples[i] for i in (0, 2, 1, 3))) for batch in batches[1:]
    ]
    one = await remote(llama, CONFIG, batches, tmp_path / "one" / "trainer.log")
    two = await remote(llama, dataclasses.replace(CONFIG, ranks=2), batches, tmp_path / "two" / "trainer.log")
    for single, double in zip(one, two, strict=True):
        assert single.actor_trained and double.actor_trained
        for name in ("pg_loss", "pg_clipfrac", "ratio_mean", "approx_kl", "actor/grad_norm"):
            assert double.metrics[name] == pytest.approx(single.metrics[name], rel=1e-4, abs=2e-6), (single.step, name)
