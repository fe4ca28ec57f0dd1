"""Which way new weights take to SGLang, and with which trainer at the other end."""

from __future__ import annotations

from collections.abc import Callable

from saocli.config.engine import EngineConfig, Publish
from saocli.engine.sglang.distributed import FromGroup
from saocli.engine.sglang.publisher import FromFolder, Way
from saocli.engine.sglang.tensor import FromMemory
from saocli.trainer.remote import RemoteTrainer
from saocli.trainer.sender import TrainerSender


def publication_way(config: EngineConfig, trainer: Callable[[], RemoteTrainer | None]) -> Way:
    """What `engine.publish` names. `trainer` looks up the one that runs now, which may start later than the engine."""
    # Half of the time for the transfer, so that the other half is left to put the old weights back.
    sender = TrainerSender(trainer, dtype=config.dtype, timeout_s=config.publish_timeout_s / 2)
    match config.publish:
        case Publish.DISTRIBUTED:
            return FromGroup(config, sender)
        case Publish.TENSOR:
            return FromMemory(sender, readers=config.tp)
        case Publish.DISK:
            return FromFolder()
