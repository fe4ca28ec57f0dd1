"""What an arm is: an estimator of advantages and a policy loss. The trainer knows nothing else of the algorithm."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Protocol, Self

from torch import Tensor

from saocli.algo.reduce import Tally
from saocli.config.arm import ArmConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class Rollout:
    """What an estimator may look at."""

    action_mask: Tensor  # [T], 1 where the model wrote the token
    score: float
    group: str  # rollouts of one prompt share it
    history: tuple[float, ...] = ()  # scores of earlier rollouts, oldest first; empty for arms that need none
    values: Tensor | None = None  # [T], the critic's before this batch's updates; None for arms without a critic


class Estimate(NamedTuple):
    """An arm's judgement of one rollout; both 0 at observation tokens."""

    advantages: Tensor  # [T] float64
    targets: Tensor | None  # [T] float64, what the critic learns; None for arms without a critic


class Arm(Protocol):
    """Frozen and pure: the same batch always gives the same estimates.

    An arm is a class in `registry.REGISTRY`, or one that an installed package names as an entry point of `sao.arms`.
    """

    name: ClassVar[str]  # key in REGISTRY
    advantage_name: ClassVar[str]  # of the advantage function in use, for the run record
    uses_critic: ClassVar[bool]
    grouped: ClassVar[bool]  # whether `group_size` rollouts of one prompt must share a batch
    trains: ClassVar[bool]  # False: serves and records only
    history: ClassVar[bool]  # whether `Rollout.history` must be filled

    @classmethod
    def from_config(cls, config: ArmConfig) -> Self:
        """Raises ConfigError for numbers that the arm cannot work with."""
        ...

    def advantages(self, rollouts: Sequence[Rollout]) -> list[Estimate]:
        """One estimate per rollout. `rollouts` is the whole optimizer batch, on whichever rank this is computed."""
        ...

    def policy_loss(
        self, logp: Tensor, rollout_logp: Tensor, advantage: Tensor, action_mask: Tensor, *, denominator: float
    ) -> tuple[Tensor, Tally]:
        """A micro-batch's contribution to the loss, and the tally for `ratio_metrics`; shapes as in `dis_loss`."""
        ...
