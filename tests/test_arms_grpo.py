"""The group arms: what a group is, one advantage for all of a rollout, and each arm's own loss."""

from __future__ import annotations

import math

import pytest
import torch

from saocli.algo.ratio_stats import ratio_metrics
from saocli.arms.base import Arm, Rollout
from saocli.arms.groups import split_groups
from saocli.arms.registry import build_arm
from saocli.config.arm import AdvantageNorm, ArmConfig
from saocli.errors import ConfigError

GROUP_ARMS = ("grpo_dis", "grpo")


def arm(name: str = "grpo_dis", **changes: object) -> Arm:
    return build_arm(ArmConfig(**({"name": name, "eps_low": 0.3, "eps_high": 5.0, "group_size": 2} | changes)))  # type: ignore[arg-type]


def rollout(group: str, score: float, mask: tuple[int, ...] = (1,)) -> Rollout:
    return Rollout(action_mask=torch.tensor(mask), score=score, group=group)


def advantages(rollouts: list[Rollout], **changes: object) -> list[list[float]]:
    return [estimate.advantages.tolist() for estimate in arm(**changes).advantages(rollouts)]


@pytest.mark.parametrize("name", GROUP_ARMS)
def test_every_action_token_has_its_rollouts_advantage(name: str) -> None:
    estimates = arm(name).advantages([rollout("g", 1.0, (1, 1, 0, 1)), rollout("g", 0.0, (1,))])
    a = 0.5 / (math.sqrt(0.5) + 1e-6)
    assert estimates[0].advantages.tolist() == pytest.approx([a, a, 0.0, a], abs=1e-12)
    assert estimates[1].advantages.tolist() == pytest.approx([-a], abs=1e-12)
    assert all(estimate.advantages.dtype == torch.float64 for estimate in estimates)
    assert [estimate.targets for estimate in estimates] == [None, None]


def test_the_division_can_be_left_out() -> None:
    assert advantages([rollout("g", 1.0), rollout("g", 0.0)], normalize_std=False) == [[0.5], [-0.5]]


def test_groups_are_normalised_within_themselves_wherever_they_lie() -> None:
    batch = [rollout("a", 10.0), rollout("b", 0.0), rollout("b", 1.0), rollout("a", 12.0)]
    assert advantages(batch, normalize_std=False) == [[-1.0], [-0.5], [0.5], [1.0]]
    assert advantages(batch[::-1], normalize_std=False) == [[1.0], [0.5], [-0.5], [-1.0]]


def test_two_groups_of_one_prompt_are_taken_in_order() -> None:
    batch = [rollout("a", 1.0), rollout("a", 3.0), rollout("a", 7.0), rollout("a", 7.0)]
    assert advantages(batch, normalize_std=False) == [[-1.0], [1.0], [0.0], [0.0]]
    assert split_groups(["a", "b", "a", "a", "b", "a"], 2) == [[0, 2], [3, 5], [1, 4]]


def test_a_group_of_another_size_is_an_error_that_names_sizes() -> None:
    batch = [rollout("a", 1.0)] * 3 + [rollout("b", 1.0)] * 2 + [rollout("c", 0.0)]
    with pytest.raises(ValueError, match=r"groups are of 2 rollouts, but the batch has 3 of a, 1 of c"):
        arm().advantages(batch)


def test_a_uniform_group_is_exactly_zero_beside_a_mixed_one() -> None:
    batch = [rollout("a", 0.1), rollout("a", 0.1), rollout("b", 0.0), rollout("b", 1.0)]
    found = advantages(batch)
    assert found[:2] == [[0.0], [0.0]]
    assert found[2][0] < 0 < found[3][0]


def test_whitening_is_over_the_tokens_of_the_batch() -> None:
    batch = [rollout("a", 1.0, (1, 1, 0, 1)), rollout("a", 0.0)]
    found = advantages(batch, advantage_norm=AdvantageNorm.BATCH)
    # Three tokens of +a and one of −a: mean a/2, std a.
    assert found[0] == pytest.approx([0.5, 0.5, 0.0, 0.5], abs=1e-5)
    assert found[1] == pytest.approx([-1.5], abs=1e-5)
    assert advantages([rollout("a", 1.0)] * 2, advantage_norm=AdvantageNorm.BATCH) == [[0.0], [0.0]]


@pytest.mark.parametrize(("name", "grad", "clipfrac"), [("grpo_dis", [-2.0, 0.0], 0.5), ("grpo", [0.0, -0.1], 0.5)])
def test_each_has_its_loss(name: str, grad: list[float], clipfrac: float) -> None:
    # Ratios 2 and 0.1 at A = 1: DIS masks the low one; the clip ends the gain of the high one.
    own = arm(name, eps_low=0.2, eps_high=0.28) if name == "grpo" else arm(name)
    logp = torch.tensor([math.log(2.0), math.log(0.1)], dtype=torch.float64, requires_grad=True)
    loss, tally = own.policy_loss(logp, torch.zeros(2), torch.ones(2), torch.ones(2), denominator=1)
    loss.backward()
    assert logp.grad is not None
    assert logp.grad.tolist() == pytest.approx(grad, abs=1e-12)
    assert ratio_metrics(tally)["pg_clipfrac"] == clipfrac


@pytest.mark.parametrize("name", GROUP_ARMS)
@pytest.mark.parametrize("changes", [{"group_size": 1}, {"eps_high": 0.0}, {"eps_low": 1.0}])
def test_bad_numbers_are_refused_when_the_arm_is_built(name: str, changes: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=next(iter(changes))):
        arm(name, **changes)
