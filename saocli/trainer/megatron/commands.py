"""The program's commands, run on the models of one rank."""

from __future__ import annotations

import os
import resource
from importlib.metadata import version
from pathlib import Path

import torch

from saocli.errors import SaoError
from saocli.trainer.channel import Message, WorkerChannel, pack, unpack
from saocli.trainer.megatron import checkpoint, data, export, sending, step
from saocli.trainer.megatron.build import build, join_ranks
from saocli.trainer.megatron.memory import give_back
from saocli.trainer.messages import WorkerSetup, batch_from_json, output_to_json


class Worker:
    """The models of a rank and its end of the conversation.

    The first rank receives the commands and passes each on to the others, who all run it together.
    """

    def __init__(self, setup: WorkerSetup, channel: WorkerChannel | None) -> None:
        self._setup = setup
        self._channel = channel
        device = join_ranks(setup.trainer, seed=setup.seed)
        self._training = build(setup.trainer, setup.arm, Path(setup.model_folder), device, self._progress)
        info = self._info()
        self._sending = sending.Sending(self._training.actor.learner)
        self._answer({"info": info})

    def serve(self) -> None:
        """Run commands in the order they come."""
        while True:
            message = self._next()
            if message["command"] == "close":
                self._answer({"id": message["id"]})
                torch.distributed.destroy_process_group()
                return
            try:
                result = self._run(message)
            # RuntimeError is torch's: out of memory, a failed write. State is as before the command.
            except (SaoError, OSError, RuntimeError) as error:
                fix = error.fix if isinstance(error, SaoError) else None
                text = error.message if isinstance(error, SaoError) else f"{type(error).__name__}: {error}"
                result = {"error": text, "fix": fix}
            if self._setup.shares_gpus:
                give_back(self._training.device)
            self._answer({"id": message["id"], **result})

    def _run(self, message: Message) -> Message:
        training, setup = self._training, self._setup
        hf_config = training.actor.learner.bridge.hf_config
        match message["command"]:
            case "step":
                batch = batch_from_json(message["batch"])
                data.check(batch.samples, context_length=setup.context_length, vocab_size=hf_config.vocab_size)
                return {"output": output_to_json(step.train_step(training, batch))}
            case "export":
                folder = Path(message["folder"])
                return {"digest": export.export_actor(training.actor.learner, Path(setup.model_folder), folder)}
            case "digest":
                return {"digest": export.actor_digest(training.actor.learner)}
            case "save":
                checkpoint.save(training, Path(message["folder"]))
            case "load":
                checkpoint.load(training, Path(message["folder"]))
            case command if command in sending.COMMANDS:
                return sending.COMMANDS[command](self._sending, message)
        return {}

    def _next(self) -> Message:
        """The next command: received by the first rank, broadcast as bytes to the rest."""
        device = self._training.device
        body = pack(self._channel.receive())[4:] if self._channel is not None else b""
        if torch.distributed.get_world_size() == 1:
            return unpack(body)
        length = torch.tensor([len(body)], device=device)
        torch.distributed.broadcast(length, src=0)
        payload = torch.zeros(int(length), dtype=torch.uint8, device=device)
        if self._channel is not None:
            payload.copy_(torch.frombuffer(bytearray(body), dtype=torch.uint8))
        torch.distributed.broadcast(payload, src=0)
        return unpack(payload.cpu().numpy().tobytes())

    def _answer(self, message: Message) -> None:
        if self._channel is not None:
            self._channel.send(message)

    def _progress(self, text: str) -> None:
        self._answer({"progress": text})

    def _info(self) -> Message:
        """Collective: process ids and memory come from every rank."""
        training = self._training
        mine = torch.tensor([os.getpid(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss], device=training.device)
        everyone = [torch.zeros_like(mine) for _ in range(torch.distributed.get_world_size())]
        torch.distributed.all_gather(everyone, mine)
        return {
            "backend": f"megatron {version('megatron-core')}",
            "ranks": len(everyone),
            "dtype": training.config.dtype.value,
            "advantage": training.arm.advantage_name,
            "actor_parameters": training.actor.learner.parameters,
            "critic_parameters": training.critic.learner.parameters if training.critic else 0,
            "peak_rss_bytes": sum(int(rank[1]) for rank in everyone) * 1024,
            "pids": [int(rank[0]) for rank in everyone],
        }
