"""The engine of a run, from its configuration: one or several, started here or attached to."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from saocli.colocate import ColocatedEngine, ColocatedTrainer, Turns
from saocli.config.engine import EngineConfig, EngineKind
from saocli.config.placement import place, trainer_gpus
from saocli.config.run import RunConfig
from saocli.driver.together import together
from saocli.engine.attach import attach
from saocli.engine.base import Engine
from saocli.engine.client import HttpEngine
from saocli.engine.embedded.launch import start_embedded
from saocli.engine.replicas import Replicas
from saocli.engine.router import Routed, check_workers
from saocli.engine.sglang.launch import start_sglang
from saocli.engine.sglang.publisher import Way
from saocli.engine.supervised import SupervisedEngine
from saocli.errors import ConfigError
from saocli.loop import Parts

Tell = Callable[[str], None]
NAMES = {EngineKind.EMBEDDED: "embedded engine", EngineKind.SGLANG: "SGLang engine"}


@dataclass(frozen=True)
class Engines:
    """What the run talks to, and what stands behind it."""

    config: EngineConfig
    engine: Engine
    started: Sequence[SupervisedEngine] = ()
    attached: Sequence[HttpEngine] = ()
    router: HttpEngine | None = None  # in front of the attached ones

    @property
    def each(self) -> Sequence[SupervisedEngine | HttpEngine]:
        """One by one, and the router, which answers as they do."""
        return (*self.started, *self.attached, *self._routers)

    @property
    def _routers(self) -> Sequence[HttpEngine]:
        return () if self.router is None else (self.router,)

    @property
    def down(self) -> str | None:
        """Why nothing can be generated now; None when something can."""
        if any(engine.up for engine in self._routers or self.each):
            return None
        away = (*self._routers, *self.attached)
        return f"no answer from {away[0].url}" if away else "the engine is restarting"

    @property
    def detail(self) -> str:
        """What they are, for the header of a run."""
        if self.router is not None:
            plural = "s" if len(self.attached) > 1 else ""
            return f"{len(self.attached)} server{plural} behind {self.router.url}"
        if self.attached:
            return f"attached to {', '.join(engine.url for engine in self.attached)}"
        many = f"{len(self.started)} × " if len(self.started) > 1 else ""
        return f"{many}{self.config.device} · {self.config.dtype} · {self.config.slots} slots"

    def processes(self) -> Mapping[str, Mapping[str, Any]]:
        """By name, for people."""
        ours = {e.name: {"pid": e.pid, "alive": e.up, "restarts": e.restarts} for e in self.started}
        theirs = {f"engine at {e.url}": e for e in self.attached} | {f"router at {e.url}": e for e in self._routers}
        return ours | {name: {"pid": None, "alive": e.up} for name, e in theirs.items()}

    def in_turns(self, parts: Parts) -> Parts:
        """The parts; a trainer that shares its GPUs with the engine takes turns with it."""
        if not isinstance(self.engine, ColocatedEngine):
            return parts
        return replace(parts, trainer=ColocatedTrainer(parts.trainer, self.engine))

    async def given_up(self) -> None:
        """Raises what ended an engine that is not started again any more; with none of ours, waits for ever."""
        await asyncio.gather(asyncio.Event().wait(), *(engine.given_up() for engine in self.started))


async def open_engines(
    config: RunConfig,
    *,
    folder: Path,
    version: str,
    logs: Path,
    progress: Tell,
    say: Tell,
    way: Way | None = None,
) -> Engines:
    """Engines that serve HF folder `folder` as `version`; all are closed by the `engine` of what is returned.

    `progress` is told each phase of the start, `say` each time an engine is started again. `way` brings SGLang its
    weights, see `start_sglang`. Raises ProcessDied, EngineError, ConfigError or MachineError, with none left behind.
    """
    limits = config.engine
    key = _key(limits.key_env)
    turns = Turns() if limits.colocate and trainer_gpus(config) else None
    many = 0 if limits.urls else limits.replicas
    starters = [_Starter(config, i, logs, progress, say, way, turns) for i in range(many)]
    async with AsyncExitStack() as opened:

        async def start(starter: _Starter) -> SupervisedEngine:
            engine = await SupervisedEngine.begin(
                starter, folder=folder, version=version, restarts=limits.restarts, tell=starter.tell
            )
            opened.push_async_callback(engine.close)
            return engine

        async def use(url: str) -> HttpEngine:
            progress(f"publishing {version} to {url}")
            engine = await attach(
                limits, url, key=key, model_folder=folder, version=version, context_length=config.context_length
            )
            opened.push_async_callback(engine.close)
            return engine

        if limits.router is not None:
            progress(f"asking {limits.router} for its workers")
            await check_workers(limits.router, limits.urls, key=key)
        started = await together([start(starter) for starter in starters])
        attached = await together([use(url) for url in limits.urls])
        opened.pop_all()
    every: list[SupervisedEngine | HttpEngine] = [*started, *attached]
    engine: Engine = every[0] if len(every) == 1 else Replicas(every, folder=folder, version=version)
    router = None
    if limits.router is not None:
        # What does not fit is refused before it gets there: after ten refusals a router takes a server for broken.
        router = HttpEngine(limits.router.rstrip("/"), key=key, context_length=config.context_length, behind=attached)
        engine = Routed(router, engine)
    if turns is not None:
        engine = ColocatedEngine(started[0], turns, folder=folder, version=version)
    return Engines(limits, engine, started, attached, router)


class _Starter:
    """`supervised.Start` of one engine of the run; each start has another seed, so that none repeats earlier draws."""

    def __init__(
        self,
        config: RunConfig,
        index: int,
        logs: Path,
        progress: Tell,
        say: Tell,
        way: Way | None,
        turns: Turns | None,
    ) -> None:
        many = config.engine.replicas
        self._config = config
        self._progress = progress
        self._say = say
        self._way = way
        self._turn = nullcontext if turns is None else turns.starting
        self._seed, self._stride = config.seed + index, many
        self._name = NAMES[config.engine.kind] + (f" {index + 1}" if many > 1 else "")
        self._log = logs / ("engine.log" if many == 1 else f"engine-{index + 1}.log")
        self._gpus = place(config, os.environ).engines[index]

    def tell(self, text: str) -> None:
        """Say it, and put it down between the two lives in the log."""
        with self._log.open("a") as file:
            file.write(f"=== {text}\n")
        self._say(text)

    async def __call__(self, folder: Path, version: str) -> HttpEngine:
        async with self._turn():
            return await self._start(folder, version)

    async def _start(self, folder: Path, version: str) -> HttpEngine:
        config, seed, progress = self._config, self._seed, self._progress
        self._seed += self._stride
        self._progress = _untold  # what is told is how the run starts
        sglang = config.engine.kind is EngineKind.SGLANG
        start = partial(start_sglang, way=self._way, gpus=self._gpus) if sglang else start_embedded
        return await start(
            config.engine,
            model_folder=folder,
            version=version,
            context_length=config.context_length,
            seed=seed,
            log=self._log,
            on_progress=progress,
            name=self._name,
        )


def _untold(text: str) -> None:
    pass


def _key(variable: str | None) -> str | None:
    if variable is None:
        return None
    if not (key := os.environ.get(variable)):
        raise ConfigError(
            f"engine.key_env is {variable}, and that environment variable is not set",
            fix="it must hold the bearer token of the servers in engine.urls",
        )
    return key
