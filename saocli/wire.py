"""Composition root: a RunConfig becomes a running stack. The only file that names concrete classes."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractContextManager, AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from saocli.client import Client
from saocli.config.engine import EngineKind
from saocli.config.run import RunConfig
from saocli.driver import Attempt, Driver, Evaluation, evaluate
from saocli.engine.base import GenerateChunk, GenerateRequest
from saocli.engine.client import HttpEngine
from saocli.engine.embedded.launch import start_embedded
from saocli.errors import EngineError, MachineError
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
from saocli.models.resolve import resolve
from saocli.process import Child
from saocli.queue import SampleQueue
from saocli.store.chain import ReleaseChain
from saocli.store.database import Database
from saocli.store.records import Records
from saocli.store.releases import Releases
from saocli.store.run import RunDirectory
from saocli.tasks.graders.pool import GraderPool
from saocli.tasks.sets import eval_problems, load_tasks
from saocli.trainer.remote import RemoteTrainer
from saocli.types import Release, StepOutput

DEATH_MOMENT_S = 1.0


class PhaseView(Protocol):
    """One line of the header in the making."""

    what: str
    detail: str

    def progress(self, text: str) -> None: ...


class View(Protocol):
    """Who is told what happens."""

    def phase(self, name: str, what: str) -> AbstractContextManager[PhaseView]: ...
    def step(self, release: Release, record: Mapping[str, Any]) -> None: ...
    def status(self, text: str) -> None: ...
    def attempt_started(self, problem: str, number: int, of: int) -> None: ...
    def attempt(self, attempt: Attempt) -> None: ...
    def evaluation(self, result: Evaluation) -> None: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """How a run ended."""

    head: Release
    trained: int  # rollouts
    queued: int  # reports on disk that no step took
    dropped: Mapping[str, int]


async def run(
    config: RunConfig,
    directory: RunDirectory,
    view: View,
    *,
    listener: socket.socket,
    drive: bool,
    last_step: int | None,
    stop: asyncio.Event,
) -> Outcome:
    """Start everything; train until the tasks are trained, `last_step` is committed or `stop` is set; end everything.

    Raises what failed, after every process it started is gone.
    """
    async with AsyncExitStack() as started:
        service = Service(config, directory, view, started)
        await service.start(listener)
        conductor = asyncio.create_task(conduct(service.parts, last_step=last_step))
        others = [asyncio.create_task(child_death(child)) for child in service.children]
        others.append(asyncio.create_task(drain_when(stop, service.queue)))
        if drive:
            others.append(asyncio.create_task(service.drive()))
        try:
            await first_failure_or(conductor, others)
        finally:
            for task in (conductor, *others):
                task.cancel()
            await asyncio.gather(conductor, *others, return_exceptions=True)
        view.status("saving the trainer's state")
        await service.chain.checkpoint_head(service.trainer)
        counts = service.records.counts()
        return Outcome(
            head=service.chain.head(),
            trained=counts.trained,
            queued=counts.queued + counts.leased,
            dropped=service.records.drops(),
        )


async def first_failure_or(conductor: asyncio.Task[None], others: list[asyncio.Task[None]]) -> None:
    """Return when the conductor has ended; raise what any of the tasks raises before."""
    pending: set[asyncio.Task[None]] = {conductor, *others}
    while not conductor.done():
        done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()


async def child_death(child: Child) -> None:
    """Raises ProcessDied when the child ends."""
    await child.wait()
    # A command under way fails too, and says which step it was: it goes first.
    await asyncio.sleep(DEATH_MOMENT_S)
    raise child.died("serving")


async def drain_when(stop: asyncio.Event, queue: SampleQueue) -> None:
    """Let the conductor end once `stop` is set."""
    await stop.wait()
    queue.drain()


class NotStarted:
    """Holds the engine's place until it is there; the gateway asks for health first, so nothing gets this far."""

    async def generate(self, request: GenerateRequest) -> AsyncIterator[GenerateChunk]:
        raise EngineError("the engine is starting")
        yield

    async def load(self, folder: Path, version: str) -> None:
        raise EngineError("the engine is starting")

    async def version(self) -> str:
        raise EngineError("the engine is starting")

    async def close(self) -> None:
        """Nothing to end."""


class Service:
    """The parts of one run, started in order; `started` ends them in reverse."""

    records: Records
    releases: Releases
    chain: ReleaseChain
    queue: SampleQueue
    engine: HttpEngine
    trainer: RemoteTrainer
    parts: Parts
    deps: GatewayDeps
    url: str

    def __init__(self, config: RunConfig, directory: RunDirectory, view: View, started: AsyncExitStack) -> None:
        if config.engine.kind is not EngineKind.EMBEDDED:
            raise MachineError(
                f"this version starts the embedded engine only, not engine.kind={config.engine.kind}",
                fix="take the CPU profile: machine=cpu",
            )
        self._config = config
        self._directory = directory
        self._view = view
        self._started = started
        self._changes = Changes()
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
        self._starting = "the trainer"
        with view.phase("trainer", "megatron") as phase:
            await self._start_trainer(folder, phase)
        with view.phase("gateway", self.url) as phase:
            self._starting = None
            self._announce()
            phase.detail = f"scenario {config.scenario} · token in {self._directory.token_file.name}"

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
            max_staleness=config.max_staleness,
            on_drop=self._changes.notify,
        )

    async def _start_engine(self, folder: Path, phase: PhaseView) -> None:
        config = self._config
        self.engine = await start_embedded(
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
        self.trainer = await RemoteTrainer.start(
            config=config.trainer,
            arm=config.arm,
            model_folder=folder,
            context_length=config.context_length,
            seed=config.seed,
            log=self._directory.logs / "trainer.log",
            on_progress=phase.progress,
        )
        self._started.push_async_callback(self.trainer.close)
        self.children.append(self.trainer.child)
        phase.progress("writing the base release")
        self.chain.begin(await self.trainer.export(self.chain.draft(0).weights))
        info = self.trainer.info
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
            self._tell()

        self.parts = Parts(
            source=self.queue,
            trainer=self.trainer,
            engine=self.engine,
            chain=self.chain,
            measure=recorder.measure,
            committed=committed,
        )

    async def _start_gateway(self, codec: HFCodec, listener: socket.socket) -> None:
        config = self._config
        self.deps = GatewayDeps(
            engine=NotStarted(),
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
            batch_size=config.batch_size,
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

    async def drive(self) -> None:
        """Play the conf's tasks through the gateway as an outside client, then let the queue drain."""
        config, options = self._config, self._config.tasks.eval
        client = Client(self.url, config.gateway.token, scenario=config.scenario)
        async with GraderPool(workers=2, timeout_s=config.tasks.grade_timeout_s) as pool:
            driver = Driver(
                client,
                pool,
                config.tasks,
                seed=config.seed,
                on_start=self._view.attempt_started,
                on_attempt=self._view.attempt,
            )

            async def measure(step: int) -> None:
                if options.samples and step in options.at:
                    problems = eval_problems(config.tasks, seed=config.seed, count=options.samples)
                    result = await evaluate(client, pool, config.tasks, problems, step=step, seed=config.seed)
                    self._view.evaluation(result)

            try:
                await measure(0)
                await driver.play(load_tasks(config.tasks, seed=config.seed), on_step=measure)
            finally:
                await client.close()
        self.queue.drain()

    def _accepted(self) -> None:
        self.queue.wake()
        self._tell()

    def _tell(self) -> None:
        counts, dropped = self.records.counts(), sum(self.records.drops().values())
        doing = "training" if counts.queued + counts.leased >= self._config.batch_size else "waiting for a report"
        self._view.status(f"{doing} · {counts.open} receipts open · {counts.queued} queued · {dropped} dropped")

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
