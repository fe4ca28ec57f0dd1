"""Single-Rollout Asynchronous Optimization (arXiv 2607.07508): one rollout, a critic, skip-observation GAE, DIS."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from saocli.algo.band import check_band
from saocli.algo.gae import skip_observation_gae, value_targets
from saocli.algo.lambdas import check_alpha, length_adaptive_lambda
from saocli.algo.reduce import whiten
from saocli.arms.base import Estimate, Rollout
from saocli.arms.dis import DisLoss
from saocli.config.arm import AdvantageNorm, ArmConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class Sao(DisLoss):
    """The method's arm. Raises ConfigError on bounds that are missing or out of range."""

    eps_low: float
    eps_high: float
    gamma: float
    lambda_alpha: float
    whitened: bool

    name: ClassVar[str] = "sao"
    advantage_name: ClassVar[str] = "skip_observation_gae"
    uses_critic: ClassVar[bool] = True
    grouped: ClassVar[bool] = False
    trains: ClassVar[bool] = True
    history: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_band(self.eps_low, self.eps_high)
        check_alpha(self.lambda_alpha)

    @classmethod
    def from_config(cls, config: ArmConfig) -> Sao:
        return cls(
            eps_low=config.eps_low,
            eps_high=config.eps_high,
            gamma=config.gamma,
            lambda_alpha=config.lambda_alpha,
            whitened=config.advantage_norm == AdvantageNorm.BATCH,
        )

    def advantages(self, rollouts: Sequence[Rollout]) -> list[Estimate]:
        """GAE at λ = 1 − 1/(α·l) for the policy, λ = 1 returns for the critic; whitening touches advantages alone."""
        advantages = [self._advantages(rollout) for rollout in rollouts]
        if self.whitened:
            advantages = whiten(advantages, [rollout.action_mask for rollout in rollouts])
        targets = [value_targets(rollout.action_mask, rollout.score, gamma=self.gamma) for rollout in rollouts]
        return [Estimate(*pair) for pair in zip(advantages, targets, strict=True)]

    def _advantages(self, rollout: Rollout) -> Tensor:
        if rollout.values is None:
            raise ValueError("arm sao needs the critic's values of every rollout")
        lam = length_adaptive_lambda(int(rollout.action_mask.sum()), self.lambda_alpha)
        return skip_observation_gae(rollout.values, rollout.action_mask, rollout.score, gamma=self.gamma, lam=lam)[0]
