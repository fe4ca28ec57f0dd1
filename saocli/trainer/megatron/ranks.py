"""Data-parallel arithmetic: what every rank must agree on before an optimizer step."""

from __future__ import annotations

from typing import Any

import torch
from megatron.core import parallel_state

from saocli.algo.reduce import Tally


def data_rank() -> int:
    return parallel_state.get_data_parallel_rank()


def data_ranks() -> int:
    return parallel_state.get_data_parallel_world_size()


def summed(tensor: torch.Tensor) -> torch.Tensor:
    """Σ over data-parallel ranks, in place."""
    torch.distributed.all_reduce(tensor, group=parallel_state.get_data_parallel_group())
    return tensor


def pooled(tally: Tally) -> Tally:
    """The tally of all data-parallel ranks' parts."""
    group = parallel_state.get_data_parallel_group()

    def over_ranks(part: dict[str, torch.Tensor], op: Any) -> dict[str, torch.Tensor]:
        if not part:
            return part
        stacked = torch.stack(list(part.values()))
        torch.distributed.all_reduce(stacked, op=op, group=group)
        return dict(zip(part, stacked.unbind(), strict=True))

    return Tally(
        sums=over_ranks(tally.sums, torch.distributed.ReduceOp.SUM),
        maxima=over_ranks(tally.maxima, torch.distributed.ReduceOp.MAX),
    )
