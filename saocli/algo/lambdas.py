"""Length-adaptive lambda (VAPO, arXiv 2504.05118; alpha 1.5 in SAO, arXiv 2607.07508 §3.2)."""

from __future__ import annotations

from saocli.errors import ConfigError


def check_alpha(alpha: float) -> None:
    """Raises ConfigError unless alpha is a positive number."""
    if not isinstance(alpha, int | float) or not alpha > 0.0:
        raise ConfigError(f"lambda_alpha must be a number above 0, got {alpha!r}", fix="set arm.lambda_alpha, e.g. 1.5")


def length_adaptive_lambda(action_tokens: int, alpha: float) -> float:
    """λ = 1 − 1/(alpha·l) clamped to [0, 1], l = action tokens of one rollout; 0 for l = 0, which is not trainable."""
    check_alpha(alpha)
    if action_tokens <= 0:
        return 0.0
    return min(1.0, max(0.0, 1.0 - 1.0 / (alpha * action_tokens)))
