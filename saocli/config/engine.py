"""conf/engine/: the rollout engine."""

from __future__ import annotations

from dataclasses import dataclass

from saocli.config.choice import Choice
from saocli.config.trainer import Device, DType


class EngineKind(Choice):
    """Which engine serves rollouts."""

    EMBEDDED = "embedded"
    SGLANG = "sglang"


@dataclass(frozen=True)
class EngineConfig:
    """The engine's process and its limits."""

    kind: EngineKind = EngineKind.EMBEDDED
    device: Device = Device.CPU
    dtype: DType = DType.FP32
    python: str | None = None  # interpreter of the engine's process; None: this one
    threads: int = 2  # OMP threads (CPU)
    slots: int = 8  # requests decoded at once; more wait
    start_timeout_s: float = 180.0
