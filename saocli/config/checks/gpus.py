"""GPUs: enough of them for every process, and what sharing them asks for."""

from __future__ import annotations

from collections.abc import Iterator

from saocli.config.checks.problem import Problem
from saocli.config.engine import EngineKind, Pause, Publish
from saocli.config.placement import gpus_needed
from saocli.config.run import RunConfig
from saocli.config.trainer import Device


def gpus(config: RunConfig) -> Iterator[Problem]:
    if config.engine.colocate:
        yield from _colocated(config)
    needed, trainer, engine = gpus_needed(config), config.trainer, config.engine
    if needed > config.machine.gpus:
        yield Problem(
            f"machine.gpus is {config.machine.gpus} but the run's processes take {needed}: "
            f"trainer.device={trainer.device} trainer.ranks={trainer.ranks}, engine.device={engine.device} "
            f"engine.tp={engine.tp} engine.dp={engine.dp} engine.replicas={engine.replicas}",
            f"set machine.gpus={needed}, or let SGLang share the trainer's: engine.colocate=true",
        )


def _colocated(config: RunConfig) -> Iterator[Problem]:
    """The engine's weights and cache leave the GPU while the trainer steps, and are loaded anew from disk."""
    engine = config.engine
    if engine.kind is not EngineKind.SGLANG or Device.CPU in (engine.device, config.trainer.device):
        yield Problem(
            f"engine.colocate is true with engine.kind={engine.kind} engine.device={engine.device} "
            f"trainer.device={config.trainer.device}",
            "it shares GPUs between the trainer and SGLang: trainer=gpu engine=sglang, or engine.colocate=false",
        )
    if engine.urls or engine.replicas > 1:
        yield Problem(
            f"engine.colocate is true with engine.replicas={engine.replicas} and {len(engine.urls)} engine.urls",
            "one engine of this run's own shares the trainer's GPUs: more copies in it are engine.dp",
        )
    if engine.publish is not Publish.DISK:
        yield Problem(
            f"engine.colocate is true but engine.publish is {engine.publish}",
            "woken, it loads its weights from the release's folder: engine.publish=disk",
        )
    if engine.pause is not Pause.RETRACT:
        yield Problem(
            f"engine.colocate is true but engine.pause is {engine.pause}",
            "the KV cache leaves the GPU, so what runs must be computed anew: engine.pause=retract",
        )
