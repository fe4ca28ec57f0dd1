"""The SAO arm: what it takes from its config, what the critic learns, and that DIS comes after advantages."""

from __future__ import annotations

import math

import pytest
import torch

from saocli.algo.ratio_stats import ratio_metrics
from saocli.arms.base import Arm, Rollout
from saocli.arms.registry import build_arm
from saocli.config.arm import AdvantageNorm, ArmConfig
from saocli.errors import ConfigError

CONFIG = {"name": "sao", "eps_low": 0.3, "eps_high": 5.0}


def sao(**changes: object) -> Arm:
    return build_arm(ArmConfig(**(CONFIG | changes)))  # type: ignore[arg-type]


def rollout(values: list[float], mask: list[int], score: float) -> Rollout:
    return Rollout(values=torch.tensor(values), action_mask=torch.tensor(mask), score=score, group="g")


@pytest.mark.parametrize("changes", [{"eps_high": 0.0}, {"eps_low": 1.0}, {"lambda_alpha": 0.0}])
def test_bad_numbers_are_refused_when_the_arm_is_built(changes: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=next(iter(changes))):
        sao(**changes)


def test_an_unset_upper_bound_never_falls_back() -> None:
    with pytest.raises(ConfigError, match="eps_high"):
        build_arm(ArmConfig(name="sao", eps_low=0.3))


def test_lambda_counts_action_tokens_and_targets_ignore_it() -> None:
    # l = 2 → λ = 2/3: A_0 = (0.5 − 0.25) + 2/3·(1 − 0.5).
    (estimate,) = sao().advantages([rollout([0.25, math.nan, 0.5], [1, 0, 1], 1.0)])
    assert estimate.advantages.tolist() == pytest.approx([0.25 + 1 / 3, 0.0, 0.5])
    assert estimate.targets is not None
    assert estimate.targets.tolist() == [1.0, 0.0, 1.0]


def test_whitening_changes_advantages_alone() -> None:
    batch = [rollout([0.1, 0.2], [1, 1], 1.0), rollout([0.3], [1], 0.0)]
    plain = sao().advantages(batch)
    white = sao(advantage_norm=AdvantageNorm.BATCH).advantages(batch)
    pooled = torch.cat([estimate.advantages for estimate in white])
    assert float(pooled.mean()) == pytest.approx(0.0, abs=1e-12)
    assert float(pooled.std()) == pytest.approx(1.0, abs=1e-5)
    for before, after in zip(plain, white, strict=True):
        assert before.targets is not None and after.targets is not None
        assert torch.equal(before.targets, after.targets)


def test_a_missing_value_is_an_error() -> None:
    with pytest.raises(ValueError, match="values"):
        sao().advantages([Rollout(action_mask=torch.tensor([1]), score=1.0, group="g")])


def test_dis_rejecting_the_scored_token_leaves_advantages_alone() -> None:
    arm = sao(lambda_alpha=1e9)  # λ = 1
    (estimate,) = arm.advantages([rollout([0.0, 0.0], [1, 1], 1.0)])
    assert estimate.advantages.tolist() == pytest.approx([1.0, 1.0])
    assert estimate.targets is not None
    assert estimate.targets.tolist() == [1.0, 1.0]
    logp = torch.tensor([-1.0, -3.0 + math.log(7.0)], dtype=torch.float64, requires_grad=True)
    loss, tally = arm.policy_loss(
        logp, torch.tensor([-1.0, -3.0]), estimate.advantages, torch.tensor([1, 1]), denominator=1
    )
    loss.backward()
    assert logp.grad is not None
    assert logp.grad.tolist() == pytest.approx([-1.0, 0.0])
    assert ratio_metrics(tally)["pg_clipfrac"] == 0.5
