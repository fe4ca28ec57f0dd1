"""conf/metrics/: where step records go."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class MetricsConfig:
    """Windows of rolling values."""

    rolling_rollouts: int = 128  # explained variance and reward cover the last N rollouts
