"""The trainer as a sender: what leaves it is what it exports, bit for bit, and nobody who fails to receive stops it."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import torch
from safetensors.torch import load_file
from trainerkit import QUICK, make_model, mixed_batch, reference, started

from saocli.config.trainer import DType
from saocli.errors import ProcessDied, TrainerError
from saocli.trainer.remote import RemoteTrainer
from saocli.trainer.sender import TrainerSender

pytestmark = pytest.mark.asyncio(loop_scope="module")
TORCH = {DType.FP32: torch.float32, DType.BF16: torch.bfloat16}


class Receiver:
    """`sglang/receiver.py`."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def do(self, what: str, **values: Any) -> None:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None and stdout is not None
        stdin.write(json.dumps({"do": what, **values}).encode() + b"\n")
        await stdin.drain()
        assert await stdout.readline() == b"null\n"


@asynccontextmanager
async def receiving() -> AsyncIterator[Receiver]:
    script = Path(__file__).parent / "sglang" / "receiver.py"
    pipe = asyncio.subprocess.PIPE
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    process = await asyncio.create_subprocess_exec(sys.executable, str(script), stdin=pipe, stdout=pipe, env=env)
    try:
        assert process.stdout is not None
        assert await process.stdout.readline() == b"null\n"
        yield Receiver(process)
    finally:
        process.kill()
        await process.wait()


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("llama"))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def trainer(llama: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RemoteTrainer]:
    """One trainer, with a step behind it, for the tests that leave it alive."""
    async with started(llama, tmp_path_factory.mktemp("shared")) as trainer:
        await trainer.step(mixed_batch(reference(llama)))
        yield trainer


def sender_of(trainer: RemoteTrainer, dtype: DType = DType.FP32, timeout_s: float = 30) -> TrainerSender:
    return TrainerSender(lambda: trainer, dtype=dtype, timeout_s=timeout_s)


async def join(sender: TrainerSender, receiver: Receiver, group: str) -> None:
    host, port = await sender.listen()
    await asyncio.gather(
        receiver.do("join", host=host, port=port, group=group),
        sender.join(world_size=2, group=group, backend="gloo"),
    )


async def sent(sender: TrainerSender, receiver: Receiver, file: Path) -> dict[str, torch.Tensor]:
    """What the receiver has of the sender's weights, which come in two buckets."""
    specs = await sender.specs()
    half = len(specs) // 2
    received = asyncio.ensure_future(
        receiver.do("receive", specs=[[s.name, s.dtype, s.shape] for s in specs], file=str(file))
    )
    await sender.send(0, half)
    await sender.send(half, len(specs))
    await received
    return load_file(file)


def check_equal(received: dict[str, torch.Tensor], exported: Path, dtype: DType) -> None:
    expected = load_file(exported / "model.safetensors")
    assert received.keys() == expected.keys()
    for name, tensor in expected.items():
        assert received[name].dtype == TORCH[dtype]
        assert torch.equal(received[name], tensor.to(TORCH[dtype])), name


async def test_a_group_receives_what_is_exported(trainer: RemoteTrainer, llama: Path, tmp_path: Path) -> None:
    await trainer.export(tmp_path / "one")
    async with receiving() as receiver:
        sender = sender_of(trainer)
        assert not sender.joined()
        await join(sender, receiver, "first")
        assert sender.joined()
        check_equal(await sent(sender, receiver, tmp_path / "r1"), tmp_path / "one", DType.FP32)
        # The same group takes the next step's weights; another one takes them in the engine's dtype.
        await trainer.step(mixed_batch(reference(llama), 2))
        await trainer.export(tmp_path / "two")
        received = await sent(sender, receiver, tmp_path / "r2")
        check_equal(received, tmp_path / "two", DType.FP32)
        assert not torch.equal(received["model.norm.weight"], load_file(tmp_path / "r1")["model.norm.weight"])
        rounding = sender_of(trainer, DType.BF16)
        await join(rounding, receiver, "second")
        check_equal(await sent(rounding, receiver, tmp_path / "r3"), tmp_path / "two", DType.BF16)
        await rounding.leave()
        assert not rounding.joined()
        with pytest.raises(TrainerError, match="in no process group"):
            await rounding.send(0, 1)


async def test_another_process_reads_what_is_shared(trainer: RemoteTrainer, tmp_path: Path) -> None:
    await trainer.export(tmp_path / "weights")
    before = set(os.listdir("/dev/shm"))
    async with receiving() as receiver:
        for dtype in DType:
            sender = sender_of(trainer, dtype)
            specs = await sender.specs()
            half = len(specs) // 2
            received: dict[str, torch.Tensor] = {}
            for first, last in ((0, half), (half, len(specs))):
                payloads = await sender.share(first, last, readers=2)
                assert len(payloads) == 2
                for payload in payloads:
                    assert len(payload) < 20_000  # handles, not weights
                    await receiver.do("read", payload=payload, file=str(tmp_path / "read"))
                    received |= load_file(tmp_path / "read")
            check_equal(received, tmp_path / "weights", dtype)
            await sender.leave()
    assert set(os.listdir("/dev/shm")) <= before


async def test_nobody_joins_and_the_trainer_goes_on(trainer: RemoteTrainer, tmp_path: Path) -> None:
    digest = await trainer.export(tmp_path / "before")
    sender = sender_of(trainer, timeout_s=1.0)
    await sender.listen()
    begun = time.monotonic()
    with pytest.raises(TrainerError, match=r"sending weights \(join\)"):
        await sender.join(world_size=2, group="alone", backend="gloo")
    assert time.monotonic() - begun < 5
    assert not sender.joined()
    assert await trainer.export(tmp_path / "after") == digest


async def test_a_receiver_that_dies_amid_a_transfer_is_an_error_and_the_next_group_works(
    trainer: RemoteTrainer, tmp_path: Path
) -> None:
    await trainer.export(tmp_path / "weights")
    sender = sender_of(trainer, timeout_s=20.0)
    async with receiving() as receiver:
        await join(sender, receiver, "short")
        specs = await sender.specs()
    with pytest.raises(TrainerError, match=r"sending weights \(send\)"):
        await sender.send(0, len(specs))
    async with receiving() as receiver:
        await join(sender, receiver, "again")
        check_equal(await sent(sender, receiver, tmp_path / "received"), tmp_path / "weights", DType.FP32)
        await sender.leave()


async def test_giving_up_an_answer_leaves_the_channel_in_step(trainer: RemoteTrainer) -> None:
    sender = sender_of(trainer)
    asking = asyncio.ensure_future(sender.specs())
    await asyncio.sleep(0.01)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert len(await sender.specs()) == 20


@pytest.mark.slow
async def test_a_trainer_that_hangs_in_a_transfer_is_ended(llama: Path, tmp_path: Path) -> None:
    async with started(llama, tmp_path) as trainer:
        (rank,) = trainer.info.pids
        os.kill(rank, signal.SIGSTOP)
        with pytest.raises(ProcessDied, match=r"still sending weights \(leave\)"):
            await trainer.transfer("leave", within_s=0.5)
        assert trainer.child.returncode is not None


@pytest.mark.slow
async def test_two_tensor_parallel_ranks_send_whole_tensors(tmp_path: Path) -> None:
    # 131 words: tensor parallelism pads the vocabulary.
    folder = make_model(tmp_path / "model", "qwen3", tied=False)
    config = dataclasses.replace(QUICK, ranks=2, tensor_parallel=2)
    async with started(folder, tmp_path, config) as trainer, receiving() as receiver:
        await trainer.step(mixed_batch(reference(folder)))
        await trainer.export(tmp_path / "weights")
        sender = sender_of(trainer)
        await join(sender, receiver, "parallel")
        check_equal(await sent(sender, receiver, tmp_path / "received"), tmp_path / "weights", DType.FP32)
        await sender.leave()
        assert (await trainer.step(mixed_batch(reference(folder), 2))).step == 2
