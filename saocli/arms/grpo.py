"""Group Relative Policy Optimization (arXiv 2402.03300) with the PPO clip, and no DIS."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from saocli.algo.ppo import ppo_loss
from saocli.algo.reduce import Tally
from saocli.arms.groups import GroupArm


@dataclass(frozen=True, kw_only=True, slots=True)
class Grpo(GroupArm):
    """Group-relative advantages, clipped ratios. Raises ConfigError on bounds that are missing or out of range."""

    name: ClassVar[str] = "grpo"

    def policy_loss(
        self, logp: Tensor, rollout_logp: Tensor, advantage: Tensor, action_mask: Tensor, *, denominator: float
    ) -> tuple[Tensor, Tally]:
        """The PPO clip, see `ppo_loss`."""
        return ppo_loss(
            logp,
            rollout_logp,
            advantage,
            action_mask,
            eps_low=self.eps_low,
            eps_high=self.eps_high,
            denominator=denominator,
        )
