"""Worker processes that grade replies under a hard deadline.

The libraries that read mathematics can hang inside one C call, where no signal handler and no thread helps: only the
end of the process does. So a grading that is late or crashes costs its process, is an error, and another one starts.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pickle
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import saocli
from saocli.process import compute_env
from saocli.tasks.graders.grade import Grade
from saocli.types import Problem

LOAD_TIMEOUT_S = 60.0  # importing a grader's library on a busy machine
_WORKER = "saocli.tasks.graders.worker"


class GraderPool:
    """Up to `workers` gradings at a time, each with `timeout_s` seconds; processes start when first needed."""

    def __init__(self, *, workers: int, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._slots: asyncio.LifoQueue[_Worker | None] = asyncio.LifoQueue()  # None: may start one
        self._running: set[_Worker] = set()
        for _ in range(workers):
            self._slots.put_nowait(None)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def grade(self, problem: Problem, text: str) -> Grade:
        """The grade of a reply; waits for a free process first. The deadline starts when the grader does."""
        worker = await self._slots.get()
        keep = False
        try:
            if worker is None or not worker.alive:
                worker = await _Worker.start(self._timeout_s)
                self._running.add(worker)
            grade = await worker.grade(problem, text)
            keep = worker.usable
            return grade
        finally:
            if worker is not None and not keep:  # late, crashed, or this call was cancelled midway
                await worker.kill()
                self._running.discard(worker)
            self._slots.put_nowait(worker if keep else None)

    async def close(self) -> None:
        """End every process. Gradings under way end in an error."""
        for worker in tuple(self._running):
            await worker.kill()
        self._running.clear()


class _Worker:
    """One grading process."""

    def __init__(self, process: asyncio.subprocess.Process, timeout_s: float) -> None:
        self._process = process
        self._timeout_s = timeout_s
        self.usable = True

    @classmethod
    async def start(cls, timeout_s: float) -> _Worker:
        root = str(Path(saocli.__file__).parents[1])
        path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", _WORKER, str(os.getpid()), str(timeout_s)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env=compute_env(1, {"PYTHONPATH": path}),
            start_new_session=True,  # Ctrl-C on the terminal is the parent's to handle
        )
        return cls(process, timeout_s)

    async def grade(self, problem: Problem, text: str) -> Grade:
        """One job; `usable` is False afterwards if this process must not get another."""
        assert self._process.stdin is not None
        self.usable = False
        limit = LOAD_TIMEOUT_S
        try:
            self._process.stdin.write(pickle.dumps((problem, text)))
            await self._process.stdin.drain()
            event = await asyncio.wait_for(self._event(), limit)
            if event.get("loaded"):
                limit = self._timeout_s
                event = await asyncio.wait_for(self._event(), limit)
        except TimeoutError:
            return Grade(error=f"grader {problem.grader}: no answer within {limit:g} s")
        except (ConnectionError, EOFError):
            code = await self._process.wait()
            return Grade(error=f"grader {problem.grader}: its process ended with status {code}")
        self.usable = True
        return Grade(score=event.get("score"), error=event.get("error"))

    async def _event(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        if not line:
            raise EOFError
        return json.loads(line)

    @property
    def alive(self) -> bool:
        return self._process.returncode is None

    async def kill(self) -> None:
        """End the process and wait until it is gone."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()
