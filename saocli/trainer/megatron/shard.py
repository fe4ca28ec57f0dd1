"""One optimizer batch as a data-parallel rank sees it: all rollouts' scores and masks, its own share of the tokens."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from saocli.arms.base import Rollout
from saocli.trainer.megatron import ranks
from saocli.trainer.megatron.data import action_masks, collate, deal, of_actions, to_rollouts
from saocli.types import Sample


class Shard:
    """`micros` are this rank's; `masks` ([T] bool per rollout) and `tokens` (action tokens) are the whole batch's."""

    def __init__(self, samples: Sequence[Sample], *, micro_batch_size: int, device: torch.device) -> None:
        self.samples = samples
        self.masks = action_masks(samples, device)
        self.tokens = int(sum(mask.sum() for mask in self.masks))
        shares = deal(len(samples), rank=ranks.data_rank(), ranks=ranks.data_ranks(), size=micro_batch_size)
        self.micros = [collate(samples, members, device) for members in shares]

    @property
    def response_tokens(self) -> int:
        return sum(len(sample.response_ids) for sample in self.samples)

    def rollouts(self, values: Sequence[torch.Tensor] | None) -> list[Rollout]:
        """What an arm may see of each rollout; `values` [T] per rollout, None without a critic."""
        return [
            Rollout(
                action_mask=mask,
                score=sample.score,
                group=sample.group,
                history=sample.history,
                values=None if values is None else values[i],
            )
            for i, (sample, mask) in enumerate(zip(self.samples, self.masks, strict=True))
        ]

    def zeros(self) -> list[torch.Tensor]:
        """[T] per rollout, fp32."""
        return [torch.zeros(mask.shape, device=mask.device) for mask in self.masks]

    def per_micro(self, per_rollout: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """[T] per rollout of the batch → [N] per micro-batch of this rank."""
        return [
            of_actions([per_rollout[m] for m in micro.members], [self.masks[m] for m in micro.members])
            for micro in self.micros
        ]

    def gather(self, per_micro: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """[N] fp32 per micro-batch of every rank → [T] per rollout of the batch, on every rank."""
        mine = self.zeros()
        for micro, flat in zip(self.micros, per_micro, strict=True):
            pieces = to_rollouts(flat, [self.masks[m] for m in micro.members])
            for member, piece in zip(micro.members, pieces, strict=True):
                mine[member] = piece
        everyone = ranks.summed(torch.cat(mine))
        return list(everyone.split([mask.numel() for mask in self.masks]))
