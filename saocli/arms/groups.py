"""Arms that judge a rollout by the others of its prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import torch

from saocli.algo.band import check_band
from saocli.algo.grpo import group_advantages
from saocli.arms.base import Estimate, Rollout
from saocli.arms.constant import constant_estimates
from saocli.config.arm import AdvantageNorm, ArmConfig
from saocli.errors import ConfigError


def split_groups(names: Sequence[str], size: int) -> list[list[int]]:
    """The places in the batch of each group's rollouts; `names` [B] says whose prompt each rollout has.

    Where a prompt has several groups in the batch, its first `size` rollouts are one, the next `size` the next.
    Raises ValueError naming every prompt whose rollouts make no whole groups.
    """
    places: dict[str, list[int]] = {}
    for place, name in enumerate(names):
        places.setdefault(name, []).append(place)
    broken = [f"{len(found)} of {name}" for name, found in places.items() if len(found) % size]
    if broken:
        raise ValueError(f"groups are of {size} rollouts, but the batch has {', '.join(broken)}")
    return [found[start : start + size] for found in places.values() for start in range(0, len(found), size)]


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupArm:
    """What arms with group-relative advantages share; they differ in their loss."""

    eps_low: float
    eps_high: float
    group_size: int
    normalize_std: bool
    whitened: bool

    advantage_name: ClassVar[str] = "group_relative"
    uses_critic: ClassVar[bool] = False
    grouped: ClassVar[bool] = True
    trains: ClassVar[bool] = True
    history: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_band(self.eps_low, self.eps_high)
        if self.group_size < 2:
            raise ConfigError(
                f"group_size is {self.group_size}: a lone rollout has nothing to be compared with",
                fix="set arm.group_size to at least 2",
            )

    @classmethod
    def from_config(cls, config: ArmConfig) -> Self:
        return cls(
            eps_low=config.eps_low,
            eps_high=config.eps_high,
            group_size=config.group_size,
            normalize_std=config.normalize_std,
            whitened=config.advantage_norm == AdvantageNorm.BATCH,
        )

    def advantages(self, rollouts: Sequence[Rollout]) -> list[Estimate]:
        """(R − mean)/(std + 1e-6) within each group, the same at every action token; a uniform group is exactly 0."""
        scores = torch.tensor([rollout.score for rollout in rollouts], dtype=torch.float64)
        found = torch.zeros_like(scores)
        for places in split_groups([rollout.group for rollout in rollouts], self.group_size):
            found[places] = group_advantages(scores[places], normalize_std=self.normalize_std)
        return constant_estimates(found.tolist(), rollouts, whitened=self.whitened)
