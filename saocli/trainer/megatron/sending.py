"""The actor's weights on their way to an engine that is told no folder: over a process group, or as shared memory.

Every rank gathers, in one order, since that is collective; the first rank alone talks to the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch

from saocli.broadcast import Broadcaster
from saocli.config.trainer import DType
from saocli.errors import TrainerError
from saocli.trainer.channel import Message
from saocli.trainer.megatron.atomic import is_writer
from saocli.trainer.megatron.build import TORCH_DTYPE
from saocli.trainer.megatron.export import gathered
from saocli.trainer.megatron.learner import Learner
from saocli.trainer.megatron.shared import share

HOST = "127.0.0.1"  # like the trainer's channel, a group does not leave this machine


class Sending:
    """What lasts from one command of a transfer to the next. Every command raises TrainerError or RuntimeError."""

    def __init__(self, learner: Learner) -> None:
        self._learner = learner
        self._caster: Broadcaster | None = None
        self._tensors: list[tuple[str, torch.Tensor]] = []  # gathered, in the trainer's dtype
        self._dtype = learner.bridge.dtype  # what they are sent as
        self._shared: torch.Tensor | None = None  # alive until the engine has read it

    def specs(self, message: Message) -> Message:
        """Gather what is to be sent; answers names and shapes, which are Hugging Face's, and the dtype asked for.

        Collective. Tensors whose layout is the same in both are the parameters themselves; what tensor parallelism
        cuts up is gathered into a copy, as it is for an export.
        """
        self._forget()
        self._dtype = TORCH_DTYPE[DType(message["dtype"])]
        with torch.no_grad():
            self._tensors = [(name, tensor.detach()) for name, tensor in gathered(self._learner).items()]
        dtype = str(self._dtype).removeprefix("torch.")
        return {"specs": [[name, dtype, list(tensor.shape)] for name, tensor in self._tensors]}

    def listen(self, message: Message) -> Message:
        """Leave any group and await receivers of the next; answers where."""
        self.leave(message)
        if not is_writer():
            return {}
        self._caster = Broadcaster(HOST, timeout_s=message["timeout_s"])
        return {"host": self._caster.host, "port": self._caster.port}

    def join(self, message: Message) -> Message:
        """Be rank 0 of the group, with `world_size` − 1 receivers."""
        if is_writer():
            self._member().join(world_size=message["world_size"], group=message["group"], backend=message["backend"])
        return {}

    def send(self, message: Message) -> Message:
        """Broadcast tensors [first, last) of the last `specs`."""
        if is_writer():
            self._member().send(tensor for _, tensor in self._bucket(message))
            self._forget_after(message)
        return {}

    def share(self, message: Message) -> Message:
        """Put tensors [first, last) where `readers` processes can read them until the next call; answers how."""
        if not is_writer():
            return {}
        self._shared = None
        payloads, self._shared = share(self._bucket(message), message["readers"])
        self._forget_after(message)
        return {"payloads": payloads}

    def leave(self, message: Message) -> Message:
        """End the group and hold nothing. Safe without one."""
        caster, self._caster = self._caster, None
        self._forget()
        if caster is not None:
            caster.leave()
        return {}

    def _bucket(self, message: Message) -> list[tuple[str, torch.Tensor]]:
        # Cast here and not in `specs`, so that only one bucket is held twice.
        return [(name, tensor.to(self._dtype)) for name, tensor in self._tensors[message["first"] : message["last"]]]

    def _forget_after(self, message: Message) -> None:
        if message["last"] == len(self._tensors):
            self._tensors = []

    def _forget(self) -> None:
        self._tensors, self._shared = [], None

    def _member(self) -> Broadcaster:
        if self._caster is None:
            raise TrainerError("the trainer is in no process group", fix="have it listen and join first")
        return self._caster


COMMANDS: Mapping[str, Callable[[Sending, Message], Message]] = MappingProxyType(
    {
        "specs": Sending.specs,
        "listen": Sending.listen,
        "join": Sending.join,
        "send": Sending.send,
        "share": Sending.share,
        "leave": Sending.leave,
    }
)
