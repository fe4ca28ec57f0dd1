"""Group Relative Policy Optimization (arXiv 2402.03300) with the method's own loss: groups for a critic, DIS kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from saocli.algo.dis import dis_loss
from saocli.algo.reduce import Tally
from saocli.arms.groups import GroupArm


@dataclass(frozen=True, kw_only=True, slots=True)
class GrpoDis(GroupArm):
    """The method's control arm (arXiv 2607.07508 §4). Raises ConfigError on bounds that are missing or out of range."""

    name: ClassVar[str] = "grpo_dis"

    def policy_loss(
        self, logp: Tensor, rollout_logp: Tensor, advantage: Tensor, action_mask: Tensor, *, denominator: float
    ) -> tuple[Tensor, Tally]:
        """DIS, see `dis_loss`."""
        return dis_loss(
            logp,
            rollout_logp,
            advantage,
            action_mask,
            eps_low=self.eps_low,
            eps_high=self.eps_high,
            denominator=denominator,
        )
