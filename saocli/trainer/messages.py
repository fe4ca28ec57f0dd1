"""Carriers as JSON objects and back, for the trainer channel."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields, is_dataclass
from enum import Enum
from typing import Any, TypeVar, get_type_hints

from saocli.config.arm import ArmConfig
from saocli.config.trainer import TrainerConfig
from saocli.types import Batch, RolloutMoments, Sample, StepOutput

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerSetup:
    """All a worker process is told when it starts, besides the secret."""

    trainer: TrainerConfig
    arm: ArmConfig
    model_folder: str
    context_length: int
    seed: int
    host: str
    port: int
    shares_gpus: bool = False  # with an engine, that needs the memory between two steps


def setup_to_json(setup: WorkerSetup) -> dict[str, Any]:
    return asdict(setup)


def setup_from_json(data: dict[str, Any]) -> WorkerSetup:
    nested = {"trainer": _revive(TrainerConfig, data["trainer"]), "arm": _revive(ArmConfig, data["arm"])}
    return WorkerSetup(**(data | nested))


def batch_to_json(batch: Batch) -> dict[str, Any]:
    return {"step": batch.step, "samples": [asdict(sample) for sample in batch.samples]}


def batch_from_json(data: dict[str, Any]) -> Batch:
    return Batch(step=data["step"], samples=tuple(_sample(sample) for sample in data["samples"]))


def _sample(data: dict[str, Any]) -> Sample:
    lists = {key: tuple(value) for key, value in data.items() if isinstance(value, list)}
    # JSON has no −inf: it travelled as null.
    lists["rollout_logprobs"] = tuple(-math.inf if logp is None else logp for logp in data["rollout_logprobs"])
    return Sample(**(data | lists))


def output_to_json(output: StepOutput) -> dict[str, Any]:
    return asdict(output)


def output_from_json(data: dict[str, Any]) -> StepOutput:
    return StepOutput(**(data | {"moments": tuple(RolloutMoments(**moments) for moments in data["moments"])}))


def _revive(cls: type[T], data: dict[str, Any]) -> T:
    """A config dataclass from its JSON; enum members come back from their values, and dataclasses from theirs."""
    hints = get_type_hints(cls)
    values = {field.name: data[field.name] for field in fields(cls)}  # type: ignore[arg-type]
    for name, value in values.items():
        hint = hints[name]
        if isinstance(hint, type) and issubclass(hint, Enum):
            values[name] = hint(value)
        elif isinstance(hint, type) and is_dataclass(hint):
            values[name] = _revive(hint, value)
    return cls(**values)
