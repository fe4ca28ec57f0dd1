"""conf/trainer/: the Megatron-core actor and its colocated critic."""

from __future__ import annotations

from dataclasses import dataclass, field

from saocli.config.choice import Choice


class Device(Choice):
    """Where a process computes."""

    CPU = "cpu"
    GPU = "gpu"


class DType(Choice):
    """Parameter type of a model in memory."""

    FP32 = "fp32"
    BF16 = "bf16"


class FreezeAttention(Choice):
    """Whether the critic's attention is frozen; auto freezes it in mixture-of-experts critics only."""

    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"


class LrDecay(Choice):
    """Learning-rate schedule over optimizer steps; the method's is constant."""

    CONSTANT = "constant"
    LINEAR = "linear"


@dataclass(frozen=True)
class GuardConfig:
    """Steps that are refused: nothing moves, and the commit is a no-op. One that is not finite always is."""

    actor_grad_norm: float | None = None  # the largest that is taken, before clipping; None: any
    critic_grad_norm: float | None = None
    # So many refused steps in a row roll the run back to its newest state from before them; 0: never.
    rollback_after: int = 0


@dataclass(frozen=True)
class TrainerConfig:
    """Processes, numerics and optimizers of the trainer."""

    device: Device = Device.CPU
    dtype: DType = DType.FP32
    python: str | None = None  # interpreter of the trainer's processes; None: this one
    ranks: int = 1  # processes on this node
    tensor_parallel: int = 1
    threads: int = 2  # OMP threads per rank (CPU)
    global_batch_size: int = 1  # rollouts per optimizer step over all ranks; must equal batch_size
    micro_batch_size: int = 1  # rollouts per forward; never changes the gradient
    actor_lr: float = 1e-6
    critic_lr: float = 5e-6
    lr_decay: LrDecay = LrDecay.CONSTANT
    lr_decay_steps: int = 0  # steps to reach lr 0 when lr_decay is linear
    critic_updates: int = 2  # K: critic steps per batch
    critic_warmup_steps: int = 10  # first steps that train only the critic
    adam_beta1: float = 0.9
    adam_beta2: float = 0.95
    adam_eps: float = 1e-8
    weight_decay: float = 0.0
    clip_grad: float = 1.0
    value_clip: float | None = None  # clip of new values around the old ones; None: off
    freeze_attention: FreezeAttention = FreezeAttention.AUTO
    head_chunk: int = 512  # tokens whose logits exist at once
    guard: GuardConfig = field(default_factory=GuardConfig)
    start_timeout_s: float = 300.0
    restarts: int = 3  # times that a trainer which died is started again and restored, until the next commit
