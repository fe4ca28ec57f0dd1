"""A run that waits at a named point of a step until it is killed there, or told to go on.

    python holdkit.py serve …            `sao serve …` itself, with something between its loop and the loop's parts
    python holdkit.py SETUP.json RANKS   the trainer's launcher, for `trainer.python` by way of `trainer_python`
    python -m holdkit SETUP.json         one of its ranks, with something around the parts of `megatron.step`

Points of the loop: idle (before it takes a batch), leased, saved (before it publishes), loaded (before it commits).
Points of a rank: critic (the critic is updated, the actor is not), optimizer (both are, and nobody was told), saving
(the actor's half of the state is on disk, the critic's is not).
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import stat
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

FOLDER = "SAO_TEST_HOLDS"


class Holds:
    """The points at which a run waits, as files: `NAME` while it is to wait there, `NAME.reached` once it does."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def arm(self, point: str) -> None:
        (self._folder / f"{point}.reached").unlink(missing_ok=True)
        (self._folder / point).touch()

    def wait_reached(self, point: str, timeout: float = 60) -> None:
        deadline = time.monotonic() + timeout
        while not (self._folder / f"{point}.reached").exists():
            assert time.monotonic() < deadline, f"{point} is not reached"
            time.sleep(0.005)

    def release(self) -> None:
        for file in self._folder.iterdir():
            file.unlink(missing_ok=True)

    def stands(self, point: str) -> bool:
        """Whether it is to wait here; says that it has come here."""
        if not (self._folder / point).exists():
            return False
        (self._folder / f"{point}.reached").touch()
        return True


def trainer_python(path: Path) -> Path:
    """Write what `trainer.python` names, so that the ranks wait too; it is called with `-m LAUNCHER SETUP RANKS`."""
    path.write_text(f'#!/bin/sh\nexec {sys.executable} {__file__} "$3" "$4"\n')
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


class Held:
    """A part of the loop that waits before or after one of its methods."""

    def __init__(self, part: Any, holds: Holds, method: str, *, before: str = "", after: str = "") -> None:
        self._part = part
        self._holds = holds
        self._method = method
        self._before = before
        self._after = after

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._part, name)
        if name != self._method:
            return method

        async def called(*args: Any, **kwargs: Any) -> Any:
            await self._wait(self._before)
            result = await method(*args, **kwargs)
            await self._wait(self._after)
            return result

        return called

    async def _wait(self, point: str) -> None:
        while point and self._holds.stands(point):
            await asyncio.sleep(0.005)


def held(holds: Holds, part: Callable[..., Any], point: str) -> Callable[..., Any]:
    """A function of a rank that waits before it returns."""

    def called(*args: Any, **kwargs: Any) -> Any:
        result = part(*args, **kwargs)
        while holds.stands(point):
            time.sleep(0.005)
        return result

    return called


def serve(holds: Holds) -> None:
    """The command line, whose `wire.run` is given a `wrap`."""
    import functools

    from saocli import wire
    from saocli.cli.app import main

    def wrap(parts: Any) -> Any:
        return dataclasses.replace(
            parts,
            source=Held(parts.source, holds, "take", before="idle", after="leased"),
            trainer=Held(parts.trainer, holds, "save", after="saved"),
            engine=Held(parts.engine, holds, "load", after="loaded"),
        )

    wire.run = functools.partial(wire.run, wrap=wrap)
    main()


def launch(setup_file: str, ranks: str) -> int:
    """The product's launcher, whose ranks are this module."""
    from saocli.trainer import launcher

    launcher.WORKER = "holdkit"
    return launcher.main(setup_file, int(ranks))


def rank(holds: Holds, setup_file: str) -> None:
    """The product's worker; what is wrapped can be imported only once it has prepared torch."""
    from saocli.trainer.megatron import cpu, worker

    prepare = cpu.patch

    def prepare_and_wrap() -> None:
        prepare()
        from megatron.core import dist_checkpointing

        from saocli.trainer.megatron import step

        step._update_critic = held(holds, step._update_critic, "critic")
        step.train_step = held(holds, step.train_step, "optimizer")
        dist_checkpointing.save = held(holds, dist_checkpointing.save, "saving")

    cpu.patch = prepare_and_wrap
    worker.main(Path(setup_file))


if __name__ == "__main__":
    points = Holds(Path(os.environ[FOLDER]))
    match sys.argv[1:]:
        case ["serve", *_]:
            serve(points)
        case [setup, count]:
            sys.exit(launch(setup, count))
        case [setup]:
            rank(points, setup)
