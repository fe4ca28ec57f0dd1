"""The running mean as a baseline, and the arm that does not train."""

from __future__ import annotations

import pytest
import torch

from saocli.arms.base import Arm, Rollout
from saocli.arms.registry import build_arm
from saocli.config.arm import ArmConfig
from saocli.errors import ConfigError, TrainerError


def arm(name: str = "running_mean", window: int = 3) -> Arm:
    return build_arm(ArmConfig(name=name, eps_low=0.3, eps_high=5.0, window=window))


def advantage(score: float, *history: float, window: int = 3) -> list[float]:
    rollout = Rollout(action_mask=torch.tensor([1, 0, 1]), score=score, group="g", history=history)
    (estimate,) = arm(window=window).advantages([rollout])
    assert estimate.targets is None
    assert estimate.advantages.dtype == torch.float64
    return estimate.advantages.tolist()


def test_the_baseline_is_the_mean_of_earlier_scores() -> None:
    assert advantage(1.0, 0.0, 1.0) == [0.5, 0.0, 0.5]
    assert advantage(0.0, 1.0) == [-1.0, 0.0, -1.0]
    assert advantage(1.0, 1.0, 1.0, 1.0) == [0.0, 0.0, 0.0]


def test_it_reaches_back_a_window() -> None:
    # Oldest first: the two 9s lie before the last three.
    assert advantage(2.0, 9.0, 9.0, 0.0, 1.0, 2.0)[0] == 1.0
    assert advantage(2.0, 9.0, 9.0, 0.0, 1.0, 2.0, window=1)[0] == 0.0


def test_without_history_there_is_nothing_to_learn() -> None:
    assert advantage(1.0) == [0.0, 0.0, 0.0]


def test_the_group_does_not_matter_and_rollouts_do_not_meet() -> None:
    mask = torch.tensor([1])
    batch = [
        Rollout(action_mask=mask, score=1.0, group="a", history=(0.0,)),
        Rollout(action_mask=mask, score=1.0, group="a", history=(0.5,)),
        Rollout(action_mask=mask, score=1.0, group="b"),
    ]
    assert [estimate.advantages.item() for estimate in arm().advantages(batch)] == [1.0, 0.5, 0.0]


def test_its_loss_is_dis() -> None:
    logp = torch.tensor([0.0, 5.0], dtype=torch.float64, requires_grad=True)
    loss, _ = arm().policy_loss(logp, torch.zeros(2), torch.ones(2), torch.ones(2), denominator=2)
    loss.backward()
    assert logp.grad is not None
    assert logp.grad.tolist() == [-0.5, 0.0]


def test_an_empty_window_is_refused() -> None:
    with pytest.raises(ConfigError, match="window is 0"):
        arm(window=0)


def test_the_base_model_refuses_to_be_trained() -> None:
    base = arm("base")
    assert not base.trains
    with pytest.raises(TrainerError, match="arm base does not train"):
        base.advantages([])
    empty = torch.zeros(0)
    with pytest.raises(TrainerError, match="arm base does not train"):
        base.policy_loss(empty, empty, empty, empty, denominator=1)
