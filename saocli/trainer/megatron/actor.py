"""The policy: log-probabilities of action tokens, and the arm's loss on them."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from saocli.algo.reduce import Tally, merge
from saocli.arms.base import Arm
from saocli.trainer.megatron.data import MicroBatch
from saocli.trainer.megatron.learner import Learner
from saocli.trainer.megatron.logprobs import token_logprobs


class Actor:
    """Policy model with its optimizer."""

    def __init__(self, learner: Learner, *, head_chunk: int) -> None:
        self.learner = learner
        self._chunk = head_chunk

    def logprobs(self, micro: MicroBatch) -> torch.Tensor:
        """[N] fp32: log-probability of each action token at its rollout's temperature."""
        model = self.learner.model
        return token_logprobs(
            micro.states(model.hidden(micro.ids)),
            model.output_weight(),
            micro.targets,
            micro.temperature,
            vocab_size=self.learner.bridge.hf_config.vocab_size,
            chunk=self._chunk,
        )

    def accumulate(
        self,
        micros: Sequence[MicroBatch],
        advantages: Sequence[torch.Tensor],
        arm: Arm,
        *,
        denominator: int,
        backward: bool = True,
    ) -> Tally:
        """One pass over this rank's micro-batches; leaves the loss's gradient behind unless `backward` is False.

        `advantages`: [N] per micro-batch. `denominator`: action tokens of the whole optimizer batch on all ranks.
        """
        self.learner.zero_grad()
        empty = torch.zeros(0, device=self.learner.device)
        tallies = [arm.policy_loss(empty, empty, empty, empty, denominator=denominator)[1]]
        for micro, advantage in zip(micros, advantages, strict=True):
            if micro.targets.numel() == 0:
                continue
            with torch.set_grad_enabled(backward):
                logp = self.logprobs(micro)
                mask = torch.ones_like(micro.targets)
                loss, tally = arm.policy_loss(logp, micro.rollout_logp, advantage, mask, denominator=denominator)
            if backward:
                loss.backward()
            tallies.append(tally)
        return merge(tallies)
