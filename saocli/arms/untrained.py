"""The model as it is: attempts are served and recorded, nothing is trained on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

from torch import Tensor

from saocli.algo.reduce import Tally
from saocli.arms.base import Estimate, Rollout
from saocli.config.arm import ArmConfig
from saocli.errors import TrainerError


@dataclass(frozen=True, kw_only=True, slots=True)
class Untrained:
    """What the other arms are measured against; to train with it is refused."""

    name: ClassVar[str] = "base"
    advantage_name: ClassVar[str] = "none"
    uses_critic: ClassVar[bool] = False
    grouped: ClassVar[bool] = False
    trains: ClassVar[bool] = False
    history: ClassVar[bool] = False

    @classmethod
    def from_config(cls, config: ArmConfig) -> Self:
        return cls()

    def advantages(self, rollouts: Sequence[Rollout]) -> list[Estimate]:
        """Raises TrainerError."""
        raise refusal(self.name)

    def policy_loss(
        self, logp: Tensor, rollout_logp: Tensor, advantage: Tensor, action_mask: Tensor, *, denominator: float
    ) -> tuple[Tensor, Tally]:
        """Raises TrainerError."""
        raise refusal(self.name)


def refusal(name: str) -> TrainerError:
    """Of a trainer for an arm that does not train."""
    return TrainerError(f"arm {name} does not train", fix="serve it without a trainer, or choose another arm=…")
