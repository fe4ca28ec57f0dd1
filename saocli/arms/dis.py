"""The policy loss of the arms that mask by DIS; they differ in their advantages."""

from __future__ import annotations

from torch import Tensor

from saocli.algo.dis import dis_loss
from saocli.algo.reduce import Tally


class DisLoss:
    """Gives an arm with the bounds `eps_low` and `eps_high` its `policy_loss`."""

    __slots__ = ()  # the arms are dataclasses with slots of their own

    eps_low: float
    eps_high: float

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
