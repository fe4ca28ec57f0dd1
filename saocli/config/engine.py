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
    DISTRIBUTED = "distributed"  # the trainer broadcasts them over a process group: NCCL between GPUs, gloo on a CPU
    TENSOR = "tensor"  # the trainer shares its memory with it, on one machine: /dev/shm, or a GPU's (CUDA IPC)


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
    restarts: int = 3  # times in a row that an engine whose process died is started again; see SupervisedEngine
    replicas: int = 1  # engines like this one, each with a port, a log and, on GPUs, devices of its own
    # Running servers to use instead of starting any. They must see the run's folder under the same path, and serve a
    # model of the same shape; the run publishes its weights to them before it uses them, and never stops them.
    urls: list[str] = field(default_factory=list)
    # A running sglang-router whose workers are the servers in `urls`, no more and no fewer: generations go to it, and
    # weights to each server. None: generations are shared out here.
    router: str | None = None
    key_env: str | None = None  # environment variable that holds the bearer token of `urls` and `router`
    # What follows is for SGLang alone.
    tp: int = 1  # GPUs that share one copy of the model
    dp: int = 1  # copies of the model behind one server
    memory_fraction: float | None = None  # of GPU memory for weights and KV cache; None: SGLang's own choice
    attention: str | None = None  # attention backend; None: torch_native on the CPU, SGLang's own choice on GPUs
    kv_tokens: int | None = (
        None  # tokens that the KV cache holds; None: every slot's whole context (CPU, colocated), what fits (GPU)
    )
    colocate: bool = False  # on the trainer's own GPUs: gives its memory back while the trainer steps
    flags: dict[str, Any] = field(
        default_factory=dict
    )  # further flags of that SGLang, by name: {max-prefill-tokens: 4096}
    publish: Publish = Publish.DISK  # whatever it is, the release is on disk before it serves
    pause: Pause = Pause.RETRACT
    publish_timeout_s: float = 120.0  # a publication that takes longer fails
    watchdog_s: float = 300.0  # SGLang ends itself when it hangs for longer
