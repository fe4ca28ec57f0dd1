"""The parts of a run, wired together. The only file that names concrete classes."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from saocli.config.arms import facts
from saocli.config.engine import EngineKind
from saocli.config.run import RunConfig
from saocli.driver.drive import Played, play_to_end
from saocli.engine.absent import AbsentEngine
from saocli.engine.client import HttpEngine
from saocli.engine.embedded.launch import start_embedded
from saocli.engine.sglang.launch import start_sglang
from saocli.gateway.app import make_app
from saocli.gateway.codec import HFCodec
from saocli.gateway.deps import Changes, GatewayDeps, HealthState
from saocli.gateway.selfcheck import self_check
from saocli.gateway.server import serve
from saocli.loop import Parts, conduct
from saocli.metrics.record import StepRecorder
from saocli.metrics.rolling import Rolling
from saocli.metrics.sinks import JsonlSink
from saocli.models.describe import describe
from saocli.models.digest import folder_digest
from saocli.models.resolve import resolve
from saocli.process import Child
from saocli.queue import SampleQueue
from saocli.store.chain import ReleaseChain
from saocli.store.database import Database
from saocli.store.records import Records
from saocli.store.releases import Releases
from saocli.store.run import RunDirectory
from saocli.trainer.remote import RemoteTrainer
from saocli.types import Release, StepOutput
from saocli.wire.view import PhaseView, View


class Service:
    """The parts of one run, started in order; `started` ends them in reverse."""

    records: Records
    releases: Releases
    chain: ReleaseChain
    queue: SampleQueue
    engine: HttpEngine
    trainer: RemoteTrainer | None = None  # None for an arm that trains nothing
    parts: Parts
    deps: GatewayDeps
    base: Release
    url: str

    def __init__(self, config: RunConfig, directory: RunDirectory, view: View, started: AsyncExitStack) -> None:
        arm = facts(config.arm.name)
        assert arm is not None, "the configuration's check knows the arm"
        self._arm = arm
        self._config = config
        self._directory = directory
        self._view = view
        self._started = started
        self._changes = Changes()
        self._news = asyncio.Event()
        self._last_record: Mapping[str, Any] = {}
        self._starting: str | None = "the engine"
        self.children: list[Child] = []

    async def start(self, listener: socket.socket) -> None:
        """Model, store, gateway (which says 503 until the rest is there), engine, trainer, base release."""
        config, view = self._config, self._view
        self.url = f"http://{config.gateway.host}:{listener.getsockname()[1]}"
        with view.phase("model", config.model.name) as phase:
            folder = await asyncio.to_thread(resolve, config.model, on_progress=lambda text, _: phase.progress(text))
            phase.detail = describe(folder)
        self._open_store()
        with view.phase("engine", config.engine.kind.value) as phase:
            await self._start_gateway(await asyncio.to_thread(HFCodec, folder), listener)
            await self._start_engine(folder, phase)
        if self._arm.trains:
            self._starting = "the trainer"
            with view.phase("trainer", "megatron") as phase:
                await self._start_trainer(folder, phase)
        else:
            with view.phase("trainer", f"none (arm {config.arm.name})"):
                self.base = self.chain.begin(await asyncio.to_thread(folder_digest, folder, config.trainer.dtype))
        with view.phase("gateway", self.url) as phase:
            self._starting = None
            self._announce()
            phase.detail = f"scenario {config.scenario} · token in {self._directory.token_file.name}"

    async def conduct(self, last_step: int | None) -> None:
        """Train what is reported until the queue is drained; with an arm that trains nothing, wait for that."""
        if self._arm.trains:
            await conduct(self.parts, last_step=last_step)
        else:
            await self.queue.drained()

    async def drive(self, conductor: asyncio.Future[None], stop: asyncio.Event) -> Played | None:
        """Play the conf's tasks, see `play_to_end`."""
        return await play_to_end(
            self._config,
            self._directory,
            self._view,
            url=self.url,
            records=self.records,
            head=lambda: self.chain.head().step,
            drain=self.queue.drain,
            conductor=conductor,
            stop=stop,
        )

    async def show_counts(self) -> None:
        """Say in the live line how much is waiting, as often as it changes; for ever."""
        while True:
            self._news.clear()
            counts = await asyncio.to_thread(self.records.counts)
            dropped = sum((await asyncio.to_thread(self.records.drops)).values())
            doing = "training" if counts.queued + counts.leased >= self._config.batch_size else "waiting for a report"
            self._view.status(f"{doing} · {counts.open} receipts open · {counts.queued} queued · {dropped} dropped")
            await self._news.wait()

    async def save(self) -> None:
        """Put down the trainer's state, so that the run can go on from where it stopped."""
        if self.trainer is not None:
            self._view.status("saving the trainer's state")
            await self.chain.checkpoint_head(self.trainer)

    def _open_store(self) -> None:
        config = self._config
        database = Database(self._directory.records_db)
        self._started.callback(database.close)
        self.records, self.releases = Records(database), Releases(database)
        self.chain = ReleaseChain(
            self._directory, self.releases, scenario=config.scenario, arm=config.arm.name, config=config.releases
        )
        self.queue = SampleQueue(
            self.records,
            self.releases,
            scenario=config.scenario,
            batch_size=config.batch_size,
            group_size=config.arm.group_size,
            max_staleness=config.max_staleness,
            history=config.arm.window if self._arm.history else 0,
            on_drop=self._changes.notify,
        )

    async def _start_engine(self, folder: Path, phase: PhaseView) -> None:
        config = self._config
        start = start_sglang if config.engine.kind is EngineKind.SGLANG else start_embedded
        self.engine = await start(
            config.engine,
            model_folder=folder,
            version=self.chain.draft(0).version,
            context_length=config.context_length,
            seed=config.seed,
            log=self._directory.logs / "engine.log",
            on_progress=phase.progress,
        )
        self._started.push_async_callback(self.engine.close)
        self.children += [self.engine.child] if self.engine.child else []
        phase.progress("checking that it answers with ids and log-probabilities")
        await self_check(self.engine, self.deps.codec)
        self.deps.engine = self.engine
        phase.detail = f"{config.engine.device} · {config.engine.dtype} · {config.engine.slots} slots"

    async def _start_trainer(self, folder: Path, phase: PhaseView) -> None:
        config = self._config
        trainer = self.trainer = await RemoteTrainer.start(
            config=config.trainer,
            arm=config.arm,
            model_folder=folder,
            context_length=config.context_length,
            seed=config.seed,
            log=self._directory.logs / "trainer.log",
            on_progress=phase.progress,
        )
        self._started.push_async_callback(trainer.close)
        self.children.append(trainer.child)
        phase.progress("writing the base release")
        self.base = self.chain.begin(await trainer.export(self.chain.draft(0).weights))
        info = trainer.info
        roles = "actor + critic" if info.critic_parameters else "actor"
        ranks = f"{info.ranks} rank" + "s" * (info.ranks != 1)
        phase.what = info.backend
        phase.detail = f"{roles} · {ranks} · {info.dtype} · {info.peak_rss_bytes / 2**30:.1f} GiB"
        sink = JsonlSink(self._directory.metrics_jsonl)
        self._started.callback(sink.close)
        recorder = StepRecorder(
            rolling=Rolling(config.metrics.rolling_rollouts), sinks=[sink], advantage=info.advantage
        )

        def committed(release: Release, output: StepOutput) -> None:
            self._last_record = recorder.committed(release, output)
            self._view.step(release, self._last_record)
            self._changes.notify()
            self._news.set()

        self.parts = Parts(
            source=self.queue,
            trainer=trainer,
            engine=self.engine,
            chain=self.chain,
            measure=recorder.measure,
            committed=committed,
        )

    async def _start_gateway(self, codec: HFCodec, listener: socket.socket) -> None:
        config = self._config
        self.deps = GatewayDeps(
            engine=AbsentEngine(),
            codec=codec,
            records=self.records,
            releases=self.releases,
            scenario=config.scenario,
            model=config.model.name,
            context_length=config.context_length,
            token=config.gateway.token,
            health=self._health,
            status=self._status,
            on_report_accepted=self._accepted,
            changes=self._changes,
            seed=config.seed,
            trains=self._arm.trains,
            batch_size=config.batch_size,
            group_size=config.arm.group_size,
            max_staleness=config.max_staleness,
            create_scenarios=config.gateway.create_scenarios,
            max_body_bytes=int(config.gateway.max_body_mb * 2**20),
        )
        self._started.push_async_callback(await serve(make_app(self.deps), listener))

    def _announce(self) -> None:
        """Let this machine's clients find the service, now that it is healthy."""
        config = self._config
        self._directory.write_token(config.gateway.token)
        self._directory.write_service(url=self.url, pid=os.getpid(), scenario=config.scenario, started_at=time.time())
        self._started.callback(self._directory.remove_service)

    def _accepted(self) -> None:
        self.queue.wake()
        self._news.set()

    def _health(self) -> HealthState:
        if self._starting is not None:
            return HealthState(ok=False, reason=f"starting {self._starting}")
        dead = [child.name for child in self.children if child.returncode is not None]
        return HealthState(ok=not dead, reason=f"the {dead[0]} is down" if dead else None)

    def _status(self) -> Mapping[str, Any]:
        counts = self.records.counts()
        return {
            "phase": "starting" if self._starting else "training" if counts.leased else "waiting",
            "processes": {child.name: {"pid": child.pid, "alive": child.returncode is None} for child in self.children},
            "last_step": self._last_record,
        }
