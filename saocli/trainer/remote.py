"""The trainer as its own processes: starts the ranks by their launcher and commands the first one over the channel."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from saocli.config.arm import ArmConfig
from saocli.config.trainer import TrainerConfig
from saocli.errors import ProcessDied, TrainerError
from saocli.process import Child
from saocli.trainer import channel
from saocli.trainer.command import launch_arguments, launch_environment
from saocli.trainer.messages import WorkerSetup, batch_to_json, output_from_json, setup_to_json
from saocli.types import Batch, StepOutput

HANDSHAKE_S = 10.0
DEATH_S = 5.0  # how long the launcher takes at most to follow a rank that died
CLOSE_S = 10.0
T = TypeVar("T")
Gone = (asyncio.IncompleteReadError, ConnectionError)


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainerInfo:
    """What a started trainer says of itself."""

    backend: str  # e.g. "megatron 0.16.1"
    ranks: int
    dtype: str
    advantage: str  # name of the advantage function in use
    actor_parameters: int
    critic_parameters: int  # 0 for arms without a critic
    peak_rss_bytes: int  # resident memory of all ranks so far
    pids: tuple[int, ...]  # of the ranks


class RemoteTrainer:
    """`trainer.base.Trainer` over worker processes. One command at a time; each completes or raises."""

    def __init__(
        self, child: Child, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, info: TrainerInfo
    ) -> None:
        self.info = info
        self.child = child
        self._reader = reader
        self._writer = writer
        self._ids = itertools.count()
        self._lock = asyncio.Lock()

    @classmethod
    async def start(
        cls,
        *,
        config: TrainerConfig,
        arm: ArmConfig,
        model_folder: Path,
        context_length: int,
        seed: int,
        log: Path,
        on_progress: Callable[[str], None] | None = None,
        gpus: str | None = None,
        shares_gpus: bool = False,
    ) -> RemoteTrainer:
        """Start the ranks and wait until models are loaded.

        `gpus` is their CUDA_VISIBLE_DEVICES, None: ours. `shares_gpus`: an engine uses them too, between two steps.

        Raises ProcessDied when they end or stay silent for `config.start_timeout_s`, TrainerError when they refuse the
        model.
        """
        secret = secrets.token_hex(32)
        admitted: asyncio.Future[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.Future()

        async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(*Gone, TimeoutError, TrainerError):
                known = await asyncio.wait_for(channel.admit(reader, writer, secret), HANDSHAKE_S)
                if known and not admitted.done():
                    admitted.set_result((reader, writer))
                    return
            writer.close()

        server = await asyncio.start_server(greet, "127.0.0.1", 0, limit=channel.MAX_FRAME)
        host, port = server.sockets[0].getsockname()[:2]
        setup = WorkerSetup(
            trainer=config,
            arm=arm,
            model_folder=str(model_folder),
            context_length=context_length,
            seed=seed,
            host=host,
            port=port,
            shares_gpus=shares_gpus,
        )
        log.parent.mkdir(parents=True, exist_ok=True)
        setup_file = log.with_suffix(".json")
        setup_file.write_text(json.dumps(setup_to_json(setup), indent=2) + "\n")
        child = Child.start(
            "trainer",
            launch_arguments(config, setup_file),
            env=launch_environment(config, secret=secret, gpus=gpus),
            log=log,
        )
        try:
            reader, writer = await _first(admitted, child, config.start_timeout_s, "starting")
            info = await _first(_ready(reader, on_progress), child, config.start_timeout_s, "loading models")
        except BaseException:
            await child.stop()
            raise
        finally:
            server.close()
        return cls(child, reader, writer, info)

    @property
    def pid(self) -> int:
        """The launcher's, whose process group `close` ends."""
        return self.child.pid

    async def step(self, batch: Batch) -> StepOutput:
        """Train on these rollouts. Raises TrainerError, or ProcessDied when a rank is gone."""
        answer = await self._command(f"doing step {batch.step}", command="step", batch=batch_to_json(batch))
        return output_from_json(answer["output"])

    async def export(self, folder: Path) -> str:
        answer = await self._command(f"exporting to {folder}", command="export", folder=str(folder.absolute()))
        return str(answer["digest"])

    async def digest(self) -> str:
        return str((await self._command("hashing its weights", command="digest"))["digest"])

    async def save(self, folder: Path) -> None:
        await self._command(f"saving to {folder}", command="save", folder=str(folder.absolute()))

    async def load(self, folder: Path) -> None:
        await self._command(f"loading {folder}", command="load", folder=str(folder.absolute()))

    async def transfer(self, command: str, *, within_s: float, **values: Any) -> channel.Message:
        """One command of `megatron.sending`. Raises TrainerError; and ProcessDied where there is no answer in time.

        The trainer is ended then: a rank that hangs in a transfer takes no other command. Cancelling gives up the
        answer, not the command.
        """
        doing = f"sending weights ({command})"
        task = asyncio.ensure_future(self._command(doing, command=command, **values))
        task.add_done_callback(lambda done: done.cancelled() or done.exception())  # seen, should nobody be left
        if not (await asyncio.wait({task}, timeout=within_s))[0]:
            await self.child.stop()
            await asyncio.wait({task})
            raise ProcessDied(
                f"the trainer was still {doing} after {within_s:g} s, and was ended",
                fix=f"see {self.child.log}, raise engine.publish_timeout_s, or set engine.publish=disk",
            )
        return task.result()

    async def close(self) -> None:
        """Let the ranks end, then make sure that they have."""
        with contextlib.suppress(ProcessDied, TrainerError, TimeoutError):
            await asyncio.wait_for(self._command("closing", command="close"), CLOSE_S)
            await asyncio.wait_for(self.child.wait(), CLOSE_S)
        self._writer.close()
        await self.child.stop()

    async def _command(self, doing: str, **message: Any) -> channel.Message:
        async with self._lock:
            number = next(self._ids)
            try:
                self._writer.write(channel.pack({"id": number, **message}))
                await self._writer.drain()
                answer = await channel.read(self._reader)
                # Answers to commands whose caller gave up.
                while answer["id"] != number:
                    answer = await channel.read(self._reader)
            except Gone as error:
                raise await _death(self.child, doing) from error
        if "error" in answer:
            raise TrainerError(f"the trainer failed while {doing}: {answer['error']}", fix=answer["fix"])
        return answer


async def _ready(reader: asyncio.StreamReader, on_progress: Callable[[str], None] | None) -> TrainerInfo:
    while True:
        message = await channel.read(reader)
        if "error" in message:
            raise TrainerError(message["error"], fix=message["fix"])
        if "info" in message:
            return TrainerInfo(**(message["info"] | {"pids": tuple(message["info"]["pids"])}))
        if on_progress is not None:
            on_progress(message["progress"])


async def _first(awaitable: Awaitable[T], child: Child, timeout_s: float, doing: str) -> T:
    """The result, unless the child ends before or time runs out."""
    wanted = asyncio.ensure_future(awaitable)
    ended = asyncio.ensure_future(child.wait())
    try:
        done, _ = await asyncio.wait({wanted, ended}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if wanted in done:
            return wanted.result()
        if ended in done:
            raise child.died(doing)
        raise ProcessDied(
            f"the trainer was still {doing} after {timeout_s:g} s",
            fix=f"see {child.log}, or raise trainer.start_timeout_s",
        )
    except Gone as error:
        raise await _death(child, doing) from error
    finally:
        for task in (wanted, ended):
            task.cancel()


async def _death(child: Child, doing: str) -> ProcessDied:
    """The channel broke: give the launcher a moment to notice, end what is left, and say what happened."""
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(child.wait(), DEATH_S)
    await child.stop()
    return child.died(doing)
