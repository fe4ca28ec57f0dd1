"""The engine's kind and what only some kinds can do."""

from __future__ import annotations

from collections.abc import Iterator

from saocli.config.checks.problem import Problem
from saocli.config.engine import EngineKind, Publish
from saocli.config.run import RunConfig
from saocli.config.trainer import Device


def engine(config: RunConfig) -> Iterator[Problem]:
    engine = config.engine
    if engine.kind is EngineKind.SGLANG:
        yield from _sglang(config)
        return
    if engine.device is Device.GPU:
        yield Problem(
            "engine.kind is embedded but engine.device is gpu", "the embedded engine computes on the CPU: engine=sglang"
        )
    if engine.flags:
        yield Problem("engine.kind is embedded but engine.flags is set", "they are SGLang's: engine=sglang")
    if engine.publish is not Publish.DISK:
        yield Problem(
            f"engine.kind is embedded but engine.publish is {engine.publish}",
            "the embedded engine reads the release's folder: engine.publish=disk, or engine=sglang",
        )


def _sglang(config: RunConfig) -> Iterator[Problem]:
    engine = config.engine
    if engine.device is Device.CPU and (engine.tp > 1 or engine.dp > 1):
        yield Problem(
            f"engine.device is cpu but engine.tp is {engine.tp} and engine.dp is {engine.dp}",
            "on a CPU SGLang serves one copy of the model in one piece: set both to 1",
        )
    if engine.publish is not Publish.DISK:
        yield from _from_the_trainer(config)
    if engine.memory_fraction is not None and not 0 < engine.memory_fraction < 1:
        yield Problem(f"engine.memory_fraction is {engine.memory_fraction}", "it must lie between 0 and 1")
    if engine.kv_tokens is not None and engine.kv_tokens < config.context_length:
        yield Problem(
            f"engine.kv_tokens is {engine.kv_tokens} but context_length is {config.context_length}",
            "the KV cache must hold at least one whole request",
        )
    if not engine.watchdog_s > engine.publish_timeout_s:
        yield Problem(
            f"engine.watchdog_s is {engine.watchdog_s:g} but engine.publish_timeout_s is {engine.publish_timeout_s:g}",
            "SGLang would take a publication for a hang and end itself: raise engine.watchdog_s",
        )


def _from_the_trainer(config: RunConfig) -> Iterator[Problem]:
    """What weights that do not pass over the disk need."""
    engine = config.engine
    how = f"engine.publish is {engine.publish}"
    if engine.device is not config.trainer.device:
        yield Problem(
            f"{how} but engine.device is {engine.device} and trainer.device is {config.trainer.device}",
            "both ends must be on GPUs, or both on the CPU: set engine.publish=disk",
        )
    if engine.dp > 1:
        yield Problem(
            f"{how} but engine.dp is {engine.dp}",
            "SGLang takes tensors into one copy of the model only: set engine.dp=1 or engine.publish=disk",
        )
    if engine.replicas > 1 or engine.urls:
        yield Problem(
            f"{how} but there are several engines (engine.replicas is {engine.replicas})"
            if engine.replicas > 1
            else f"{how} but engine.urls is set",
            "the trainer gives its weights to the one engine that the run starts: set engine.publish=disk",
        )
