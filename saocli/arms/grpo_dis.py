"""Group Relative Policy Optimization (arXiv 2402.03300) with the method's own loss: groups for a critic, DIS kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from saocli.arms.dis import DisLoss
from saocli.arms.groups import GroupArm


@dataclass(frozen=True, kw_only=True, slots=True)
class GrpoDis(DisLoss, GroupArm):
    """The method's control arm (arXiv 2607.07508 §4). Raises ConfigError on bounds that are missing or out of range."""

    name: ClassVar[str] = "grpo_dis"
