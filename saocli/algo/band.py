"""The band of ratios that a policy loss accepts: two widths around 1, neither of which stands in for the other."""

from __future__ import annotations

import math

from saocli.errors import ConfigError


def check_band(eps_low: float, eps_high: float) -> None:
    """Raises ConfigError unless 0 < eps_low < 1 and 0 < eps_high < inf."""
    for name, value, most in (("eps_low", eps_low, 1.0), ("eps_high", eps_high, math.inf)):
        if not isinstance(value, int | float) or not 0.0 < value < most:
            raise ConfigError(
                f"{name} must be a number in (0, {most:g}), got {value!r}",
                fix="set both arm.eps_low and arm.eps_high: 0.3 and 5.0 for DIS on reasoning, 0.8 and 3.0 on coding; "
                "0.2 and 0.28 for the PPO clip",
            )


def bounds(eps_low: float, eps_high: float) -> tuple[float, float]:
    """1 − eps_low and 1 + eps_high. Raises ConfigError, see `check_band`."""
    check_band(eps_low, eps_high)
    # 1 − 0.8 is 0.19999999999999996 in binary; rounded, a ratio of the written bound 0.2 is on it.
    return round(1.0 - eps_low, 12), round(1.0 + eps_high, 12)
