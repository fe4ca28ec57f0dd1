"""Which process computes on which GPUs: the trainer's ranks first, the engines after them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from saocli.config.arms import facts
from saocli.config.engine import EngineConfig, Publish
from saocli.config.run import RunConfig
from saocli.config.trainer import Device

VISIBLE = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True)
class Placement:
    """Each as the CUDA_VISIBLE_DEVICES of a process; None for one that computes on the CPU."""

    trainer: str | None
    engines: tuple[str | None, ...]  # one per launched server


def place(config: RunConfig, environment: Mapping[str, str]) -> Placement:
    """Take the GPUs as `environment` shows them to this process: those of its CUDA_VISIBLE_DEVICES, else from 0 on.

    With `engine.colocate` the engines' begin with the trainer's first. With `engine.publish=tensor` an engine also sees
    the GPU of the trainer's first rank, after its own, as it reads the weights from there.
    """
    seen = environment.get(VISIBLE)
    named = [name.strip() for name in seen.split(",")] if seen is not None else None
    trainer, each = trainer_gpus(config), engine_gpus(config.engine)
    first = 0 if config.engine.colocate else trainer
    servers = range(launched(config.engine))
    engines = [_names(named, first + i * each, each) for i in servers]
    if config.engine.publish is Publish.TENSOR and trainer:
        engines = [f"{own},{_names(named, 0, 1)}" for own in engines]
    return Placement(_names(named, 0, trainer), tuple(engines))


def gpus_needed(config: RunConfig) -> int:
    """GPUs that the run's processes take together."""
    trainer, engines = trainer_gpus(config), engine_gpus(config.engine) * launched(config.engine)
    return max(trainer, engines) if config.engine.colocate else trainer + engines


def trainer_gpus(config: RunConfig) -> int:
    """One per rank; none where the arm trains nothing."""
    arm = facts(config.arm.name)
    trains = arm is None or arm.trains
    return config.trainer.ranks if trains and config.trainer.device is Device.GPU else 0


def launched(engine: EngineConfig) -> int:
    """Servers that the run starts; those that it attaches to have their GPUs already."""
    return 0 if engine.urls else engine.replicas


def engine_gpus(engine: EngineConfig) -> int:
    """Of one server: every copy of the model has GPUs of its own."""
    return engine.tp * engine.dp if engine.device is Device.GPU else 0


def _names(named: list[str] | None, first: int, count: int) -> str | None:
    if count == 0:
        return None
    last = first + count
    return ",".join(named[first:last] if named is not None else map(str, range(first, last)))
