"""One rank of the trainer: `python -m saocli.trainer.megatron.worker SETUP.json`, started by `trainer.launcher`.

The first rank connects back to the program and passes each command on to the others, who all run it together.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from importlib.metadata import version
from pathlib import Path

import torch

from saocli.config.trainer import Device
from saocli.errors import SaoError
from saocli.process import exit_with_parent
from saocli.trainer.channel import SECRET_VARIABLE, Message, WorkerChannel, pack, unpack
from saocli.trainer.messages import WorkerSetup, batch_from_json, output_to_json, setup_from_json


def main(setup_file: Path) -> None:
    """Serve commands until told to close."""
    exit_with_parent()
    setup = setup_from_json(json.loads(setup_file.read_text()))
    if setup.trainer.device is Device.CPU:
        # Before anything imports Megatron, which copies names out of torch.
        from saocli.trainer.megatron import cpu

        cpu.patch()
    secret = os.environ.pop(SECRET_VARIABLE)
    first = os.environ["RANK"] == "0"
    channel = WorkerChannel.connect(setup.host, setup.port, secret) if first else None
    try:
        worker = Worker(setup, channel)
    except SaoError as error:
        if channel is not None:
            channel.send({"error": error.message, "fix": error.fix})
        raise SystemExit(1) from error
    worker.serve()


class Worker:
    """The models of this rank and its end of the conversation."""

    def __init__(self, setup: WorkerSetup, channel: WorkerChannel | None) -> None:
        from saocli.trainer.megatron.build import build, join_ranks
        from saocli.trainer.megatron.sending import Sending

        self._setup = setup
        self._channel = channel
        device = join_ranks(setup.trainer, seed=setup.seed)
        self._training = build(setup.trainer, setup.arm, Path(setup.model_folder), device, self._progress)
        info = self._info()
        self._sending = Sending(self._training.actor.learner)
        self._answer({"info": info})

    def serve(self) -> None:
        """Run commands in the order they come."""
        from saocli.trainer.megatron.memory import give_back

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
        from saocli.trainer.megatron import checkpoint, data, export, sending, step

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


if __name__ == "__main__":
    main(Path(sys.argv[1]))
