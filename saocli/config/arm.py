"""conf/arm/: which estimator and loss, and their bounds. No torch here."""

from __future__ import annotations

from dataclasses import dataclass

from omegaconf import MISSING

from saocli.config.choice import Choice


class AdvantageNorm(Choice):
    """Whether advantages are whitened over the optimizer batch's action tokens."""

    NONE = "none"
    BATCH = "batch"


@dataclass(frozen=True)
class ArmConfig:
    """Arm and its numbers (arXiv 2607.07508 §3, §4.1)."""

    name: str = MISSING  # key in arms.REGISTRY
    eps_low: float = MISSING  # DIS keeps 1 - eps_low < ratio
    eps_high: float = MISSING  # DIS keeps ratio < 1 + eps_high; never defaulted from eps_low
    gamma: float = 1.0
    lambda_alpha: float = 1.5  # lambda = 1 - 1/(alpha * action tokens)
    advantage_norm: AdvantageNorm = AdvantageNorm.NONE
    group_size: int = 1  # rollouts of one prompt that make a group; 1 for single-rollout arms
    normalize_std: bool = True  # grouped arms: divide by the group's standard deviation
    window: int = 8  # running_mean: earlier scores of a prompt that make its baseline
