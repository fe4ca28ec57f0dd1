"""`sao serve` that is killed at a named point of a step: the real stack, with the loop's parts wrapped.

    python crashkit.py service taken@3 conf=cpu_smoke …     kills the service itself
    python crashkit.py trainer stepped@3 conf=cpu_smoke …   kills the trainer's ranks, and the service goes on

Points, in the order of a step: taken (its batch is leased), stepped, exported, saved, loaded (the engine serves the new
weights), committed, shown (its record is written). `@N` is the step. The run plays its conf's tasks to `--steps N`.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from runkit import ENV, THREADS

POINTS = ("taken", "stepped", "exported", "saved", "loaded", "committed", "shown")


class Blows:
    """Strikes once, at one point of one step."""

    def __init__(self, point: str, step: int, strike: Callable[[], None]) -> None:
        assert point in POINTS
        self._point = point
        self._step = step
        self._strike = strike
        self._struck = False
        self.now = 0  # the step that runs

    def reached(self, point: str) -> None:
        if not self._struck and (point, self.now) == (self._point, self._step):
            self._struck = True
            self._strike()


class Around:
    """A part whose methods say when they have ended."""

    def __init__(self, part: Any, blows: Blows, points: dict[str, str]) -> None:
        self._part = part
        self._blows = blows
        self._points = points

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._part, name)
        if name not in self._points:
            return method

        async def called(*args: Any, **kwargs: Any) -> Any:
            if name == "take":
                self._blows.now = args[0]
            result = await method(*args, **kwargs)
            self._blows.reached(self._points[name])
            return result

        return called


def wrapping(blows: Blows) -> Callable[[Any], Any]:
    """`wire.run`'s `wrap`."""

    def wrap(parts: Any) -> Any:
        def committed(*args: Any) -> None:
            parts.committed(*args)
            blows.reached("shown")

        return dataclasses.replace(
            parts,
            source=Around(parts.source, blows, {"take": "taken"}),
            trainer=Around(parts.trainer, blows, {"step": "stepped", "export": "exported", "save": "saved"}),
            engine=Around(parts.engine, blows, {"load": "loaded"}),
            chain=Around(parts.chain, blows, {"commit": "committed"}),
            committed=committed,
        )

    return wrap


def crashed(
    cwd: Path, victim: str, at: str, *tokens: str, steps: int, timeout: float = 240
) -> subprocess.CompletedProcess[str]:
    """Run it to its end, whichever that is."""
    argv = [sys.executable, __file__, victim, at, str(steps), *tokens, "gateway.port=0", *THREADS]
    return subprocess.run(argv, cwd=cwd, env=ENV, capture_output=True, text=True, timeout=timeout, check=False)


def main(victim: str, at: str, steps: str, *tokens: str) -> None:
    from saocli.cli.live import RunView
    from saocli.cli.output import out
    from saocli.cli.tokens import load_run_tokens
    from saocli.gateway.server import bind
    from saocli.store.run import RunDirectory
    from saocli.wire import run

    point, _, step = at.partition("@")
    ranks: list[int] = []

    def strike() -> None:
        for pid in [os.getpid()] if victim == "service" else ranks:
            os.kill(pid, signal.SIGKILL)

    wrap = wrapping(Blows(point, int(step), strike))

    def watched(parts: Any) -> Any:
        ranks[:] = parts.trainer.info.pids
        return wrap(parts)

    loaded = load_run_tokens(tokens)
    config = loaded.config
    directory = RunDirectory.create(Path("runs"), config.name)
    directory.write_config(loaded.yaml, loaded.overrides)
    with bind(config.gateway.host, config.gateway.port) as listener, directory.lock():
        asyncio.run(
            run(
                config,
                directory,
                RunView(out, as_json=False),
                listener=listener,
                drive=True,
                last_step=int(steps),
                stop=asyncio.Event(),
                wrap=watched,
            )
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
