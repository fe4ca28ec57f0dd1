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
from saocli.config.run import RunConfig
from saocli.driver.drive import Played, play_to_end
from saocli.driver.together import together
from saocli.engine.absent import AbsentEngine
from saocli.gateway.app import make_app
from saocli.gateway.codec import HFCodec
from saocli.gateway.connection import Bounds
from saocli.gateway.deps import Changes, GatewayDeps, HealthState, cannot_roll_back
from saocli.gateway.selfcheck import self_check
from saocli.gateway.server import local_url, serve
from saocli.models.describe import describe
from saocli.models.digest import folder_digest
from saocli.models.resolve import resolve
from saocli.queue import SampleQueue
from saocli.store.chain import ReleaseChain
from saocli.store.database import Database
from saocli.store.records import Records
from saocli.store.releases import Releases
from saocli.store.run import RunDirectory
from saocli.types import Release
from saocli.wire.engines import Engines, open_engines
from saocli.wire.publication import publication_way
from saocli.wire.restore import proved_weights
from saocli.wire.training import Training, Wrap
from saocli.wire.view import View


class Service:
    """The parts of one run; `started` ends them in the reverse order of their start."""

    records: Records
    releases: Releases
    chain: ReleaseChain
    queue: SampleQueue
    engines: Engines
    training: Training | None = None  # None for an arm that trains nothing
    deps: GatewayDeps
    base: Release
    url: str

    def __init__(
        self,
        config: RunConfig,
        directory: RunDirectory,
        view: View,
        started: AsyncExitStack,
        *,
        wrap: Wrap = lambda parts: parts,
    ) -> None:
        """`wrap` may put something between the conductor's loop and its parts."""
        arm = facts(config.arm.name)
        assert arm is not None, "the configuration's check knows the arm"
        self._arm = arm
        self._config = config
        self._directory = directory
        self._view = view
        self._started = started
        self._wrap = wrap
        self._changes = Changes()
        self._news = asyncio.Event()
        self._starting = True
        self.engines = Engines(config.engine, AbsentEngine())

    async def start(self, listener: socket.socket) -> None:
        """Model, store, gateway (which says 503 until the rest is there), engine and trainer, base release.

        A run directory that has a chain is gone on with: its head serves, and the trainer is restored to it.
        """
        config, view = self._config, self._view
        self.url = local_url(config.gateway.host, listener.getsockname()[1])
        with view.phase("model", config.model.name) as phase:
            folder = await asyncio.to_thread(resolve, config.model, on_progress=lambda text, _: phase.progress(text))
            phase.detail = describe(folder)
        await asyncio.to_thread(self._open_store)
        head = self.releases.head(config.scenario)
        weights = await asyncio.to_thread(proved_weights, self.chain, head, config.trainer.dtype) if head else folder
        await self._start_gateway(await asyncio.to_thread(HFCodec, folder), listener)
        if head is None or weights is None:
            engine = self._start_engine(folder, self.chain.draft(0).version)
        else:
            engine = self._start_engine(weights, head.weight_version)
        if self._arm.trains:
            training = self.training = self._new_training(folder)
            if config.engine.colocate:  # the trainer must find what the engine has left of the GPU's memory
                await engine
                await training.start()
            else:
                await together([engine, training.start()])
            await training.begin_or_restore(head, engine_serves_it=weights is not None)
        else:
            await engine
            if head is None:
                with view.phase("trainer", f"none (arm {config.arm.name})"):
                    self.chain.begin(await asyncio.to_thread(folder_digest, folder, config.trainer.dtype))
        base = self.chain.base()
        assert base is not None
        self.base = base
        with view.phase("gateway", self.url) as phase:
            self._starting = False
            self._announce()
            phase.detail = f"scenario {config.scenario} · token in {self._directory.token_file.name}"

    async def conduct(self, last_step: int | None) -> None:
        """Train what is reported until the queue is drained; with an arm that trains nothing, wait for that."""
        if self.training is not None:
            await self.training.recovery.conduct(last_step)
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
        if self.training is not None:
            await self.training.save()

    def _open_store(self) -> None:
        config = self._config
        database = Database(self._directory.records_db)
        self._started.callback(database.close)
        database.check()
        self.records, self.releases = Records(database), Releases(database)
        self.chain = ReleaseChain(
            self._directory, self.releases, scenario=config.scenario, arm=config.arm.name, config=config.releases
        )
        self.chain.clean()
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

    async def _start_engine(self, folder: Path, version: str) -> None:
        config, view = self._config, self._view
        with view.phase("engine", config.engine.kind.value) as phase:
            engines = await open_engines(
                config,
                folder=folder,
                version=version,
                logs=self._directory.logs,
                progress=phase.progress,
                say=lambda text: view.say(f"  {text}", style="yellow"),
                way=publication_way(config.engine, lambda: self.training.seat.current if self.training else None),
            )
            self._started.push_async_callback(engines.engine.close)
            phase.progress("checking that it answers with ids and log-probabilities")
            for engine in engines.each:
                await self_check(engine, self.deps.codec)
            self.deps.engine = engines.engine
            self.engines = engines
            phase.detail = engines.detail

    def _new_training(self, folder: Path) -> Training:
        return Training(
            self._config,
            self._directory,
            self._view,
            self._started,
            chain=self.chain,
            queue=self.queue,
            engine=lambda: self.engines.engine,
            model_folder=folder,
            wrap=lambda parts: self._wrap(self.engines.in_turns(parts)),
            changed=self._changed,
        )

    def _changed(self) -> None:
        self._changes.notify()
        self._news.set()

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
            rollback=self._roll_back,
            changes=self._changes,
            seed=config.seed,
            trains=self._arm.trains,
            batch_size=config.batch_size,
            group_size=config.arm.group_size,
            max_staleness=config.max_staleness,
            create_scenarios=config.gateway.create_scenarios,
            max_body_bytes=int(config.gateway.max_body_mb * 2**20),
            max_generations=config.gateway.max_generations,
            max_outstanding=config.gateway.outstanding(config.batch_size, config.max_staleness),
            receipt_ttl_s=config.gateway.receipt_ttl_s,
        )
        bounds = Bounds(connections=config.gateway.max_connections, body_bytes=self.deps.max_body_bytes)
        self._started.push_async_callback(await serve(make_app(self.deps), listener, bounds))

    def _announce(self) -> None:
        """Let this machine's clients find the service, now that it is healthy."""
        config = self._config
        self._directory.write_token(config.gateway.token)
        self._directory.write_service(url=self.url, pid=os.getpid(), scenario=config.scenario, started_at=time.time())
        self._started.callback(self._directory.remove_service)

    async def _roll_back(self, release_id: str) -> Release:
        if self.training is None:
            return await cannot_roll_back(release_id)
        return await self.training.recovery.rollback(release_id)

    def _accepted(self) -> None:
        self.queue.wake()
        self._news.set()

    def _health(self) -> HealthState:
        if self._starting:
            return HealthState(ok=False, reason=f"starting the {'trainer' if self.engines.each else 'engine'}")
        if self.engines.down is not None:
            return HealthState(ok=False, reason=self.engines.down)
        # A trainer that is being restored leaves serving as it is.
        return HealthState(ok=True)

    def _phase(self, *, leased: int) -> str:
        if self._starting:
            return "starting"
        if self.training is not None and self.training.recovery.doing is not None:
            return self.training.recovery.doing
        return "training" if leased else "waiting"

    def _status(self) -> Mapping[str, Any]:
        counts = self.records.counts()
        return {
            "phase": self._phase(leased=counts.leased),
            "processes": {
                **self.engines.processes(),
                **(self.training.seat.processes() if self.training else {}),
            },
            "last_step": self.training.last_record if self.training else {},
        }
