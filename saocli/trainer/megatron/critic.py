"""The value model: the same backbone with a scalar head, fitted to the returns."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from saocli.algo.reduce import Tally, merge
from saocli.algo.value_loss import value_loss
from saocli.trainer.megatron.data import MicroBatch
from saocli.trainer.megatron.learner import Learner


class Critic:
    """Value model with its optimizer."""

    def __init__(self, learner: Learner, *, value_clip: float | None) -> None:
        self.learner = learner
        self._clip = value_clip

    def values(self, micro: MicroBatch) -> torch.Tensor:
        """[N] fp32: the value of the state before each action token."""
        model = self.learner.model
        return model.output_layer(micro.states(model.hidden(micro.ids)))

    def accumulate(
        self,
        micros: Sequence[MicroBatch],
        targets: Sequence[torch.Tensor],
        old_values: Sequence[torch.Tensor] | None,
        *,
        denominator: int,
    ) -> tuple[list[torch.Tensor], Tally]:
        """One forward and backward over this rank's micro-batches; leaves the loss's gradient behind.

        `targets`: [N] per micro-batch. `old_values`: the values before the batch's first update, for value clipping;
        None in that first pass itself. Returns the values that this pass saw, detached, and the tally.
        """
        self.learner.zero_grad()
        empty = torch.zeros(0, device=self.learner.device)
        tallies = [value_loss(empty, empty, empty, denominator=denominator)[1]]
        seen = []
        for i, (micro, target) in enumerate(zip(micros, targets, strict=True)):
            values = self.values(micro)
            seen.append(values.detach())
            if values.numel() == 0:
                continue
            loss, tally = value_loss(
                values,
                target,
                torch.ones_like(micro.targets),
                denominator=denominator,
                old_values=seen[i] if old_values is None else old_values[i],
                clip=self._clip,
            )
            loss.backward()
            tallies.append(tally)
        return seen, merge(tallies)
