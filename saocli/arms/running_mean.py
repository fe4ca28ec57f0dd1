"""One rollout, DIS, and for a baseline what the prompt scored before: no group, no critic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import ClassVar, Self

from saocli.algo.band import check_band
from saocli.arms.base import Estimate, Rollout
from saocli.arms.constant import constant_estimates
from saocli.arms.dis import DisLoss
from saocli.config.arm import AdvantageNorm, ArmConfig
from saocli.errors import ConfigError


@dataclass(frozen=True, kw_only=True, slots=True)
class RunningMean(DisLoss):
    """A = R − mean of the last `window` scores of the rollout's history. Raises ConfigError on bad numbers."""

    eps_low: float
    eps_high: float
    window: int
    whitened: bool

    name: ClassVar[str] = "running_mean"
    advantage_name: ClassVar[str] = "running_mean_baseline"
    uses_critic: ClassVar[bool] = False
    grouped: ClassVar[bool] = False
    trains: ClassVar[bool] = True
    history: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_band(self.eps_low, self.eps_high)
        if self.window < 1:
            raise ConfigError(
                f"window is {self.window}: no score to take a mean of", fix="set arm.window to at least 1"
            )

    @classmethod
    def from_config(cls, config: ArmConfig) -> Self:
        return cls(
            eps_low=config.eps_low,
            eps_high=config.eps_high,
            window=config.window,
            whitened=config.advantage_norm == AdvantageNorm.BATCH,
        )

    def advantages(self, rollouts: Sequence[Rollout]) -> list[Estimate]:
        """The same at every action token; 0 for a rollout with nothing before it, which has no baseline."""
        return constant_estimates([self._advantage(rollout) for rollout in rollouts], rollouts, whitened=self.whitened)

    def _advantage(self, rollout: Rollout) -> float:
        earlier = rollout.history[-self.window :]
        return rollout.score - fmean(earlier) if earlier else 0.0
