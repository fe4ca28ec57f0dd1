"""A run without processes: the real queue, chain and recovery over a scripted trainer and engine."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from storekit import exchange, report

from saocli.config.releases import ReleasesConfig
from saocli.engine.base import Engine
from saocli.errors import EngineError, ProcessDied, TrainerError
from saocli.loop import Parts
from saocli.queue import SampleQueue
from saocli.store.chain import ReleaseChain
from saocli.store.database import Database
from saocli.store.records import Records
from saocli.store.releases import Releases
from saocli.store.run import RunDirectory
from saocli.stored import MARKER
from saocli.trainer.base import Trainer
from saocli.types import Batch, Release, Span, StepOutput, Taken
from saocli.wire.recovery import Recovery
from saocli.wire.restore import Restored, Restorer
from saocli.wire.seat import Seat


class Process:
    """As much of a child process as recovery looks at."""

    def __init__(self) -> None:
        self.returncode: int | None = None
        self._ended = asyncio.Event()

    def end(self) -> None:
        self.returncode = -9
        self._ended.set()

    async def wait(self) -> int:
        await self._ended.wait()
        return -9

    def died(self, doing: str) -> ProcessDied:
        return ProcessDied(f"the trainer was killed while {doing}")


class ListTrainer:
    """Its weights are the list of receipts that it was trained on."""

    def __init__(self, dies_at: list[int]) -> None:
        self.learnt: list[str] = []
        self.child = Process()
        self._dies_at = dies_at  # steps at which it dies, each once

    async def step(self, batch: Batch) -> StepOutput:
        if batch.step in self._dies_at:
            self._dies_at.remove(batch.step)
            self.child.end()
            raise self.child.died(f"doing step {batch.step}")
        self.learnt += [sample.receipt for sample in batch.samples]
        return StepOutput(step=batch.step, metrics={}, actor_trained=True)

    async def digest(self) -> str:
        return hashlib.sha256(json.dumps(self.learnt).encode()).hexdigest()

    async def export(self, folder: Path) -> str:
        self._write(folder)
        return await self.digest()

    async def save(self, folder: Path) -> None:
        self._write(folder)

    async def load(self, folder: Path) -> None:
        try:
            self.learnt = json.loads((folder / "learnt.json").read_text())
        except ValueError as error:
            raise TrainerError(f"{folder.parent.name} is damaged") from error

    def _write(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "learnt.json").write_text(json.dumps(self.learnt))
        (folder / MARKER).write_text("{}")


class ListSeat:
    """`wire.seat.Seat` over ListTrainers."""

    def __init__(self, dies_at: list[int]) -> None:
        self.dies_at = dies_at
        self.filled = 1
        self.trainer = ListTrainer(dies_at)

    @property
    def child(self) -> Process:
        return self.trainer.child

    @property
    def dead(self) -> bool:
        return self.child.returncode is not None

    async def fill(self) -> None:
        self.filled += 1
        self.trainer = ListTrainer(self.dies_at)


@dataclass
class ListEngine:
    """Serves what it was given last."""

    learnt: list[str] = field(default_factory=list)
    version: str = "s@0"
    broken: bool = False

    async def load(self, folder: Path, version: str) -> None:
        if self.broken:
            raise EngineError("no room for these weights")
        self.learnt, self.version = json.loads((folder / "learnt.json").read_text()), version


class Run:
    """One session of a run; another one over the same folder goes on with it."""

    def __init__(
        self,
        path: Path,
        *,
        every: int = 1,
        restarts: int = 3,
        dies_at: list[int] | None = None,
        keep_last: int = 100,
        keep_every: int = 0,
    ) -> None:
        directory = RunDirectory(path)
        if not path.exists():
            directory.make()
        self.database = Database(directory.records_db)
        self.records, self.releases = Records(self.database), Releases(self.database)
        self.records.ensure_scenario("s", at=0.0)
        config = ReleasesConfig(checkpoint_every=every, keep_last=keep_last, keep_every=keep_every)
        self.chain = ReleaseChain(directory, self.releases, scenario="s", arm="sao", config=config)
        self.chain.clean()
        self.queue = SampleQueue(
            self.records, self.releases, scenario="s", batch_size=1, max_staleness=9, on_drop=lambda: None
        )
        self.seat, self.engine = ListSeat(dies_at or []), ListEngine()
        self.said: list[str] = []
        self.restored: list[Restored] = []
        self.shown: list[Release] = []
        self.restorer = Restorer(
            self.chain,
            batch=self.queue.batch,
            trainer=lambda: cast(Trainer, self.seat.trainer),
            renew=self.seat.fill,
            say=self.said.append,
        )
        self.recovery = Recovery(
            parts=self._parts,
            seat=cast(Seat, self.seat),
            restorer=self.restorer,
            chain=self.chain,
            queue=self.queue,
            restarts=restarts,
            say=self.said.append,
            status=lambda text: None,
            restored=self.restored.append,
            rolled_back=self.shown.append,
        )

    async def begin(self) -> None:
        draft = self.chain.draft(0)
        self.chain.begin(await self.seat.trainer.export(draft.weights))

    async def restore(self) -> Restored:
        return await self.restorer.restore(self.chain.head(), fresh=True, progress=lambda text: None)

    def graded(self, *receipts: str, version: str | None = None) -> None:
        """Rollouts of the weights that serve now, reported."""
        for receipt in receipts:
            spans = (Span(version=version or self.chain.head().weight_version, start=0, end=3),)
            self.records.add_exchange(exchange(receipt, spans=spans))
            self.records.accept_report(report(f"p-{receipt}", receipt), fingerprint="f", trains=True, reason=None)
        self.queue.wake()

    @asynccontextmanager
    async def conducting(self) -> AsyncIterator[asyncio.Task[None]]:
        """The conductor at work; drained at the end."""
        task = asyncio.create_task(self.recovery.conduct(None))
        yield task
        self.queue.drain()
        await task

    async def reaches(self, step: int) -> None:
        """Return once the head is there."""
        async with asyncio.timeout(5):
            while self.chain.head().step < step:
                await asyncio.sleep(0.005)

    def close(self) -> None:
        self.database.close()

    def _parts(self) -> Parts:
        def measure(taken: Taken, output: StepOutput, seconds: Mapping[str, float]) -> Mapping[str, float | None]:
            return {}

        return Parts(
            source=self.queue,
            trainer=cast(Trainer, self.seat.trainer),
            engine=cast(Engine, self.engine),
            chain=self.chain,
            measure=measure,
            committed=lambda release, output: self.shown.append(release),
        )
