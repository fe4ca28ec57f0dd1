"""conf/gateway/: the HTTP front."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class GatewayConfig:
    """Address, token and limits of the HTTP service."""

    host: str = "127.0.0.1"
    port: int = 8900
    token: str = "reef-local"  # a non-loopback host refuses this default
    max_body_mb: float = 8.0
    create_scenarios: bool = True  # a new scenario name is created on first use
