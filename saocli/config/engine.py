"""conf/engine/: the rollout engine."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from saocli.config.choice import Choice
from saocli.config.trainer import Device, DType


class EngineKind(Choice):
    """Which engine serves rollouts."""

    EMBEDDED = "embedded"
    SGLANG = "sglang"


class Publish(Choice):
    """How new weights reach SGLang."""

    DISK = "disk"  # it reads the release's safetensors
    DISTRIBUTED = "distributed"  # the trainer broadcasts them over a process group


class Pause(Choice):
    """What becomes of SGLang's running requests while weights change."""

    RETRACT = "retract"  # they wait; their keys and values are computed anew from the new weights
    IN_PLACE = "in_place"  # they wait and keep the old weights' keys and values; the prefix cache is off
    ABORT = "abort"  # they end with what they have, and are not trained


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
    # What follows is for SGLang alone.
    tp: int = 1  # GPUs that share one copy of the model
    dp: int = 1  # copies of the model behind one server
    memory_fraction: float | None = None  # of GPU memory for weights and KV cache; None: SGLang's own choice
    attention: str | None = None  # attention backend; None: torch_native on the CPU, SGLang's own choice on GPUs
    kv_tokens: int | None = (
        None  # tokens that the KV cache holds; None: every slot's whole context (CPU), what fits (GPU)
    )
    flags: dict[str, Any] = field(
        default_factory=dict
    )  # further flags of that SGLang, by name: {max-prefill-tokens: 4096}
    publish: Publish = Publish.DISK
    pause: Pause = Pause.RETRACT
    publish_timeout_s: float = 120.0  # a publication that takes longer fails
    watchdog_s: float = 300.0  # SGLang ends itself when it hangs for longer
