"""Scalars that survive being split: micro-batches and ranks add up to exactly what the whole batch would give."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

STD_FLOOR = 1e-6


@dataclass(frozen=True, kw_only=True, slots=True)
class Tally:
    """Detached float64 scalars of a part of a batch; `sums` combine by +, `maxima` (never negative) by max.

    They stay on the device, so that a micro-batch costs no synchronisation. Over ranks: all-reduce each dict's values
    in order, SUM and MAX.
    """

    sums: dict[str, Tensor]
    maxima: dict[str, Tensor]


def merge(tallies: Iterable[Tally]) -> Tally:
    """The tally of the union of disjoint parts; parts must carry the same names."""
    sums: dict[str, Tensor] = {}
    maxima: dict[str, Tensor] = {}
    for tally in tallies:
        sums = {name: value + sums.get(name, 0.0) for name, value in tally.sums.items()}
        maxima = {name: value.maximum(maxima.get(name, value)) for name, value in tally.maxima.items()}
    return Tally(sums=sums, maxima=maxima)


def same_shape(**tensors: Tensor) -> None:
    """Raises ValueError naming the shapes unless all agree: [T] broadcast against [b, 1] would train silently wrong."""
    if len({tuple(tensor.shape) for tensor in tensors.values()}) > 1:
        shapes = ", ".join(f"{name} {list(tensor.shape)}" for name, tensor in tensors.items())
        raise ValueError(f"shapes differ: {shapes}")


def divisor(denominator: float) -> float:
    """A loss's denominator, the action tokens of the whole optimizer batch; 1 for none, where every term is 0."""
    if denominator < 0:
        raise ValueError(f"denominator must be a number of tokens, got {denominator}")
    return max(float(denominator), 1.0)


def whiten(advantages: Sequence[Tensor], masks: Sequence[Tensor]) -> list[Tensor]:
    """(A − mean)/(std + 1e-6) over the action tokens of a whole optimizer batch, n−1 standard deviation.

    `advantages`, `masks`: B tensors [T]. Masked positions are not read and come back as 0. One token, or equal
    advantages, give 0.
    """
    actions = [mask.bool() for mask in masks]
    pooled = torch.cat([advantage.double()[action] for advantage, action in zip(advantages, actions, strict=True)])
    white = standardize(pooled)
    pieces = white.split([int(action.sum()) for action in actions])
    return [
        torch.zeros_like(advantage, dtype=torch.float64).masked_scatter(action, piece)
        for advantage, action, piece in zip(advantages, actions, pieces, strict=True)
    ]


def standardize(x: Tensor) -> Tensor:
    """(x − mean)/(std + 1e-6) with the n−1 standard deviation, [n] float64; exactly 0 where all x are equal."""
    # A rounded mean would leave 1e-17 here, which 1/(std + 1e-6) makes visible.
    if x.numel() == 0 or bool((x == x[0]).all()):
        return torch.zeros_like(x)
    centred = x - x.mean()
    return centred / (x.std() + STD_FLOOR)
