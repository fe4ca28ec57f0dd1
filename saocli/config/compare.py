"""`compare:` of a conf: the budget of `sao compare`, and the batch shape of each kind of arm."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class CompareConfig:
    """What each arm gets."""

    rollouts: int = 48  # scored rollouts per arm and seed
    seeds: int = 3  # the whole comparison is made with seed, seed + 1, …
    single: list[str] = field(default_factory=list)  # Hydra overrides of the runs of single-rollout arms
    group: list[str] = field(default_factory=list)  # of the runs of grouped arms
