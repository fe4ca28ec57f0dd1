"""The real trainer at one end, the real SGLang at the other: weights that pass over no disk are the same ones."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio
from enginekit import ask, final, llama, save
from sglangkit import NEEDS_SGLANG, config, sglang
from trainerkit import QUICK, SAO

from saocli.config.trainer import DType
from saocli.engine.client import HttpEngine
from saocli.engine.publish import Control
from saocli.engine.sglang.distributed import FromGroup
from saocli.engine.sglang.publisher import FromFolder, Way
from saocli.engine.sglang.tensor import FromMemory
from saocli.engine.supervised import SupervisedEngine
from saocli.errors import EngineError
from saocli.trainer.remote import RemoteTrainer
from saocli.trainer.sender import TrainerSender
from saocli.types import Batch, Sample

pytestmark = [pytest.mark.asyncio(loop_scope="module"), *NEEDS_SGLANG]

PROMPT = tuple(b"What is 2 + 2?")
Said = tuple[tuple[int, ...], tuple[float | None, ...], set[str]]


class DyingSender(TrainerSender):
    """The trainer's first rank is killed before it sends its second bucket, if told so."""

    dies = False

    async def send(self, first: int, last: int) -> None:
        trainer = self._trainer()
        assert trainer is not None
        if self.dies and first > 0:
            os.kill(trainer.info.pids[0], signal.SIGKILL)
        await super().send(first, last)


@dataclass
class Chosen:
    """The way that a test wants."""

    way: Way

    async def bring(self, engine: Control, folder: Path, version: str, *, flush_cache: bool) -> None:
        await self.way.bring(engine, folder, version, flush_cache=flush_cache)


class Stack:
    """Trainer and engine, and the ways from one to the other; several buckets to each transfer."""

    trainer: RemoteTrainer
    engine: SupervisedEngine
    served: Said  # at the last publication

    def __init__(self, root: Path) -> None:
        self.root = root
        self.base = save(llama(0, eos_token_id=None), root / "v0")
        self.step = 0
        self.sender = DyingSender(lambda: self.trainer, dtype=DType.FP32, timeout_s=30)
        group = FromGroup(config(), self.sender, bucket_bytes=40_000)
        memory = FromMemory(self.sender, readers=1, bucket_bytes=40_000)
        self.ways: dict[str, Way] = {"disk": FromFolder(), "distributed": group, "tensor": memory}
        self.chosen = Chosen(group)

    async def start_trainer(self, folder: Path) -> None:
        log = self.root / "logs" / "trainer.log"
        self.trainer = await RemoteTrainer.start(
            config=QUICK, arm=SAO, model_folder=folder, context_length=256, seed=3, log=log
        )

    async def start_engine(self, folder: Path, version: str) -> HttpEngine:
        log = self.root / "logs" / "engine.log"
        return await sglang(folder, log, 8, version=version, way=self.chosen)

    async def train(self) -> tuple[float, Path]:
        """One step on what the engine says now: how far both sides' log-probs are apart, and the exported weights."""
        self.step += 1
        chunk = await final(self.engine, ask(PROMPT, max_new_tokens=60, seed=self.step))
        sample = Sample(
            receipt=f"r{self.step}",
            prompt_ids=PROMPT,
            response_ids=chunk.output_ids,
            action_mask=(1,) * len(chunk.output_ids),
            rollout_logprobs=tuple(logp or 0.0 for logp in chunk.logprobs),
            score=1.0,
            temperature=1.0,
            group="g",
            versions=tuple(span.version for span in chunk.spans),
            truncated=True,
            reported_at=0.0,
        )
        output = await self.trainer.step(Batch(step=self.step, samples=(sample,)))
        assert output.actor_trained
        folder = self.root / f"v{self.step}"
        await self.trainer.export(folder)
        gap = output.metrics["train_rollout_logprob_abs_diff_max"]
        assert gap is not None
        return gap, folder

    async def publish(self, how: str, folder: Path, version: str) -> None:
        self.chosen.way = self.ways[how]
        await self.engine.load(folder, version)
        self.served = await self.greedy()

    async def greedy(self) -> Said:
        """What the engine says and with what log-probs, and the versions that it says it with.

        Bit-equal for equal weights only as the first answer after a publication: later ones find the prompt cached.
        """
        chunk = await final(self.engine, ask(PROMPT, max_new_tokens=60, temperature=0.0))
        return chunk.output_ids, chunk.logprobs, {span.version for span in chunk.spans}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    stack = Stack(tmp_path_factory.mktemp("stack"))
    stack.engine = await SupervisedEngine.begin(
        stack.start_engine, folder=stack.base, version="v0", restarts=3, tell=print
    )
    try:
        await stack.start_trainer(stack.base)
        yield stack
    finally:
        await stack.engine.close()
        await stack.trainer.close()


async def test_three_updates_serve_bit_equal_by_every_way_and_agree_with_the_trainer(stack: Stack) -> None:
    base = (await stack.greedy())[:2]
    seen = {base}
    for update, left_by in enumerate(("distributed", "tensor", "distributed"), 1):
        gap, folder = await stack.train()
        assert gap < 1e-4  # of the weights that the last way left there
        said = {}
        for how in ("disk", "tensor", "distributed"):
            await stack.publish("disk", stack.base, "base")  # so that there is something to bring
            assert stack.served == (*base, {"base"})
            await stack.publish(how, folder, f"v{update}-{how}")
            *said[how], versions = stack.served
            assert versions == {f"v{update}-{how}"} == {await stack.engine.version()}
        assert said["distributed"] == said["tensor"] == said["disk"]
        await stack.publish(left_by, folder, f"v{update}")
        assert stack.served == (*said["disk"], {f"v{update}"})
        seen.add(stack.served[:2])
    assert len(seen) == 4
    assert (await stack.train())[0] < 1e-4


async def test_a_trainer_that_dies_amid_a_transfer_leaves_the_old_weights_and_the_next_one_joins_anew(
    stack: Stack,
) -> None:
    before = stack.served
    folder = stack.root / f"v{stack.step}"  # trained, not published
    stack.sender.dies = True
    with pytest.raises(EngineError, match=r"lost could not be sent|receiving lost"):
        await stack.publish("distributed", folder, "lost")
    assert await stack.greedy() == before
    with pytest.raises(EngineError, match="lost could not be shared"):
        await stack.publish("tensor", folder, "lost")
    assert await stack.greedy() == before
    stack.sender.dies = False
    await stack.trainer.close()
    await stack.start_trainer(folder)
    await stack.publish("distributed", folder, "found")
    assert stack.served[2] == {"found"}
    assert stack.served[1] != before[1]
    assert (await stack.train())[0] < 1e-4


async def test_an_engine_that_was_killed_is_sent_the_next_weights_in_a_new_group(stack: Stack) -> None:
    before = stack.served
    folder = stack.root / f"v{stack.step}"
    assert stack.engine.pid is not None
    os.kill(stack.engine.pid, signal.SIGKILL)
    await stack.publish("distributed", folder, "after")  # waits until it is back, with what it served
    assert stack.engine.restarts == 1
    assert stack.served[2] == {"after"}
    assert stack.served[1] != before[1]
    assert (await stack.train())[0] < 1e-4
