"""Samples as right-padded micro-batches, and how a batch is dealt to data-parallel ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from saocli.errors import TrainerError
from saocli.types import Sample


@dataclass(frozen=True, kw_only=True, slots=True)
class MicroBatch:
    """Rollouts that run through a model together.

    b rollouts of at most s tokens, N action tokens in all, ordered by rollout, then by position. Everything of length N
    is aligned to them.
    """

    members: tuple[int, ...]  # b, places in the optimizer batch
    ids: torch.Tensor  # [b, s] prompt, response, padding
    before: torch.Tensor  # [N] rows of the flattened [s·b] model output: the position *before* each action token
    targets: torch.Tensor  # [N] the action tokens' ids
    temperature: torch.Tensor  # [N] fp32, τ of the token's rollout
    rollout_logp: torch.Tensor  # [N] fp32

    def states(self, hidden: torch.Tensor) -> torch.Tensor:
        """hidden [s, b, h] → [N, h], the states in which the action tokens were chosen."""
        return hidden.reshape(-1, hidden.shape[-1]).index_select(0, self.before)


def check(samples: Sequence[Sample], *, context_length: int, vocab_size: int) -> None:
    """Raises TrainerError, naming the receipt, for a sample that no model output lines up with."""
    for sample in samples:
        tokens = len(sample.prompt_ids) + len(sample.response_ids)
        if not sample.prompt_ids:
            raise TrainerError(f"sample {sample.receipt} has no prompt", fix="its first token has no state before it")
        if tokens > context_length:
            raise TrainerError(
                f"sample {sample.receipt} has {tokens} tokens, the trainer takes {context_length}",
                fix="raise context_length",
            )
        if sample.temperature <= 0:
            raise TrainerError(f"sample {sample.receipt} has temperature {sample.temperature}", fix="τ must be above 0")
        if not all(0 <= token < vocab_size for token in (*sample.prompt_ids, *sample.response_ids)):
            raise TrainerError(
                f"sample {sample.receipt} has a token outside the vocabulary of {vocab_size}",
                fix="serve and train the same model",
            )


def deal(count: int, *, rank: int, ranks: int, size: int) -> list[tuple[int, ...]]:
    """The rollouts of one data-parallel rank, in micro-batches of at most `size`; a rank may get none."""
    mine = range(rank, count, ranks)
    return [tuple(mine[i : i + size]) for i in range(0, len(mine), size)]


def collate(samples: Sequence[Sample], members: Sequence[int], device: torch.device) -> MicroBatch:
    """Put `members` of a batch into one right-padded micro-batch."""
    chosen = [samples[member] for member in members]
    rows = [(*sample.prompt_ids, *sample.response_ids) for sample in chosen]
    width = max(len(row) for row in rows)
    actions = [
        (row, t, sample) for row, sample in enumerate(chosen) for t, action in enumerate(sample.action_mask) if action
    ]
    return MicroBatch(
        members=tuple(members),
        ids=torch.tensor([row + (0,) * (width - len(row)) for row in rows], device=device),
        before=torch.tensor(
            [(len(sample.prompt_ids) + t - 1) * len(rows) + row for row, t, sample in actions],
            dtype=torch.long,
            device=device,
        ),
        targets=torch.tensor([sample.response_ids[t] for _, t, sample in actions], dtype=torch.long, device=device),
        temperature=torch.tensor([sample.temperature for _, _, sample in actions], dtype=torch.float, device=device),
        rollout_logp=torch.tensor(
            [sample.rollout_logprobs[t] for _, t, sample in actions], dtype=torch.float, device=device
        ),
    )


def action_masks(samples: Sequence[Sample], device: torch.device) -> list[torch.Tensor]:
    """[T] bool per rollout."""
    return [torch.tensor(sample.action_mask, dtype=torch.bool, device=device) for sample in samples]


def of_actions(per_rollout: Sequence[torch.Tensor], masks: Sequence[torch.Tensor]) -> torch.Tensor:
    """[T] per rollout → the action tokens of all of them in order, [N]."""
    return torch.cat([tensor[mask] for tensor, mask in zip(per_rollout, masks, strict=True)])


def to_rollouts(flat: torch.Tensor, masks: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The inverse of `of_actions`; 0 at observation tokens."""
    pieces = flat.split([int(mask.sum()) for mask in masks])
    return [flat.new_zeros(mask.shape).masked_scatter(mask, piece) for mask, piece in zip(masks, pieces, strict=True)]
