"""What trains in a run: the trainer, the records of its steps, and the loop around them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from saocli.config.placement import place
from saocli.config.run import RunConfig
from saocli.engine.base import Engine
from saocli.errors import StoreError
from saocli.loop import Parts
from saocli.metrics.mend import first_unwritten, mend
from saocli.metrics.record import StepRecorder
from saocli.metrics.rolling import Rolling
from saocli.metrics.sinks import JsonlSink
from saocli.queue import SampleQueue
from saocli.store.chain import ReleaseChain
from saocli.store.run import RunDirectory
from saocli.trainer.remote import RemoteTrainer
from saocli.types import REFUSED, Release, StepOutput, Taken
from saocli.wire.recovery import Recovery
from saocli.wire.restore import Restored, Restorer
from saocli.wire.seat import Seat
from saocli.wire.view import View

Wrap = Callable[[Parts], Parts]


class Training:
    """Started in two steps, `start` and `begin_or_restore`; `started` ends it."""

    recorder: StepRecorder

    def __init__(
        self,
        config: RunConfig,
        directory: RunDirectory,
        view: View,
        started: AsyncExitStack,
        *,
        chain: ReleaseChain,
        queue: SampleQueue,
        engine: Callable[[], Engine],
        model_folder: Path,
        wrap: Wrap,
        changed: Callable[[], None],
    ) -> None:
        """`engine` gives it once it has started. `wrap` may put something between the loop and its parts. `changed` is
        called after each commit.
        """
        self.last_record: Mapping[str, Any] = {}
        self._config = config
        self._directory = directory
        self._view = view
        self._started = started
        self._chain = chain
        self._queue = queue
        self._engine = engine
        self._model_folder = model_folder
        self._wrap = wrap
        self._changed = changed
        self._progress: Callable[[str], None] = view.status
        self._refused: list[int] = []  # the last steps, as far as the guard refused them
        self.seat = Seat(self._new_trainer)
        self._restorer = Restorer(
            chain, batch=queue.batch, trainer=lambda: self.parts().trainer, renew=self.seat.fill, say=self._warn
        )
        self.recovery = Recovery(
            parts=self.parts,
            seat=self.seat,
            restorer=self._restorer,
            chain=chain,
            queue=queue,
            restarts=config.trainer.restarts,
            say=self._warn,
            status=view.status,
            restored=self._restored,
            rolled_back=self._rolled_back,
        )

    def parts(self) -> Parts:
        """What the loop conducts, as it is now."""
        return self._wrap(
            Parts(
                source=self._queue,
                trainer=self.seat.trainer,
                engine=self._engine(),
                chain=self._chain,
                measure=self._measure,
                committed=self._committed,
            )
        )

    async def start(self) -> None:
        """Start the trainer, with the base model."""
        with self._view.phase("trainer", "megatron") as phase:
            self._progress = phase.progress
            self._started.push_async_callback(self.seat.close)
            await self.seat.fill()
            info = self.seat.trainer.info
            roles = "actor + critic" if info.critic_parameters else "actor"
            ranks = f"{info.ranks} rank" + "s" * (info.ranks != 1)
            phase.what = info.backend
            phase.detail = f"{roles} · {ranks} · {info.dtype} · {info.peak_rss_bytes / 2**30:.1f} GiB"
        self._progress = self._view.status

    async def begin_or_restore(self, head: Release | None, *, engine_serves_it: bool) -> None:
        """The base release of a fresh run; else the trainer, the engine and the records as they were at the head."""
        if head is None:
            self._view.status("writing the base release")
            self._chain.begin(await self.seat.trainer.export(self._chain.draft(0).weights))
            self._open_recorder({})
        else:
            with self._view.phase("restore", head.release_id) as phase:
                wanted = await asyncio.to_thread(first_unwritten, self._directory.metrics_jsonl, self._chain.releases())
                restored = await self._restorer.restore(head, fresh=True, progress=phase.progress, wanted=wanted)
                phase.detail = restored.line
                if not engine_serves_it:
                    phase.progress("writing the head's weights again")
                    await self._publish_again(restored)
                await asyncio.to_thread(self._open_recorder, restored.outputs)
                self._restored(restored)

    async def save(self) -> None:
        """Put down the trainer's state, so that the run can go on from where it stopped."""
        self._view.status("saving the trainer's state")
        await self._chain.checkpoint_head(self.parts().trainer)

    async def _new_trainer(self) -> RemoteTrainer:
        config = self._config
        return await RemoteTrainer.start(
            config=config.trainer,
            arm=config.arm,
            model_folder=self._model_folder,
            context_length=config.context_length,
            seed=config.seed,
            log=self._directory.logs / "trainer.log",
            on_progress=self._progress,
            gpus=place(config, os.environ).trainer,
            shares_gpus=config.engine.colocate,
        )

    async def _publish_again(self, restored: Restored) -> None:
        """The head's weights are not on disk any more, or damaged; the trainer has them."""
        head, folder = restored.release, self._chain.home_of_weights(restored.release)
        if not restored.equal:
            raise StoreError(
                f"{folder} is missing or damaged, and the trainer came to other weights than it held",
                fix=f"put {folder} back from a copy, or start a new run",
            )
        await self.parts().trainer.export(folder)
        await self._engine().load(folder, head.weight_version)

    def _open_recorder(self, outputs: Mapping[int, StepOutput]) -> None:
        """Go on with metrics.jsonl where the chain ends; `outputs` is of steps that were made again."""
        advantage = self.seat.trainer.info.advantage
        path = self._directory.metrics_jsonl
        records = mend(path, self._chain.releases(), batch=self._queue.batch, outputs=outputs, advantage=advantage)
        self.last_record = records[-1] if records else {}
        sink = JsonlSink(path)
        self._started.callback(sink.close)
        rolling = Rolling.restored(self._config.metrics.rolling_rollouts, records)
        self.recorder = StepRecorder(rolling=rolling, sinks=[sink], advantage=advantage)

    def _measure(self, taken: Taken, output: StepOutput, seconds: Mapping[str, float]) -> Mapping[str, float | None]:
        return self.recorder.measure(taken, output, seconds)

    def _committed(self, release: Release, output: StepOutput) -> None:
        self._show(release, self.recorder.committed(release, output))
        self._refused = [*self._refused, release.step] if output.metrics.get(REFUSED) else []
        limit = self._config.trainer.guard.rollback_after
        if limit and len(self._refused) == limit:
            self._warn(f"{limit} steps in a row were refused: rolling back to before step {self._refused[0]}")
            self.recovery.roll_back_before(self._refused[0])
            self._refused = []

    def _rolled_back(self, release: Release) -> None:
        self._show(release, self.recorder.rolled_back(release))

    def _restored(self, restored: Restored) -> None:
        self.recorder.note(restored.metrics())

    def _show(self, release: Release, record: Mapping[str, Any]) -> None:
        self.last_record = record
        self._view.step(release, record)
        self._changed()

    def _warn(self, text: str) -> None:
        self._view.say(f"  {text}", style="yellow")
