"""conf/gateway/: the HTTP front."""

from __future__ import annotations

from dataclasses import dataclass, field

DEFAULT_TOKEN = "reef-local"
SCENARIO_NAME = "[A-Za-z0-9][A-Za-z0-9._-]{0,63}"


@dataclass(frozen=True)
class GatewayConfig:
    """Address, token and limits of the HTTP service."""

    host: str = "127.0.0.1"
    port: int = 8900
    # A non-loopback host refuses this default. Not given in a conf or override, SAO_TOKEN is it.
    token: str = field(default=DEFAULT_TOKEN, repr=False)
    max_body_mb: float = 8.0
    max_connections: int = 4096  # open at a time; one more is answered 503
    max_generations: int = 1024  # running at a time; one more is answered 429
    # Trainable rollouts that no step took yet, from their start until then; one more is answered 429. None: enough for
    # four windows of staleness, batch_size * (max_staleness + 1) rollouts each, and at least 1024; 0: no limit.
    max_outstanding: int | None = None
    receipt_ttl_s: float = 600.0  # a receipt without a report counts as outstanding for this long
    create_scenarios: bool = True  # a new scenario name is created on first use

    def outstanding(self, batch_size: int, max_staleness: int) -> int:
        """`max_outstanding` as a number; 0: no limit."""
        if self.max_outstanding is not None:
            return self.max_outstanding
        return max(1024, 4 * batch_size * (max_staleness + 1))
