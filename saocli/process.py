"""Child processes: each in its own group, its output in a log file, ended with everything it started.

Row 0: imports errors alone, so that engine and trainer can both use it.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from saocli.errors import ProcessDied

LOG_TAIL_LINES = 15


def tail(log: Path, lines: int = LOG_TAIL_LINES) -> str:
    """The last lines of a log file, or '' when there is none."""
    with contextlib.suppress(OSError), log.open("rb") as file:
        file.seek(0, os.SEEK_END)
        file.seek(max(0, file.tell() - 64 * 1024))
        return "\n".join(file.read().decode(errors="replace").splitlines()[-lines:])
    return ""


def compute_env(threads: int, extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of a torch process that shares its cores with others.

    Threads that spin while idle starve the neighbour process, so they are told to sleep. The client's token stays here.
    """
    env = {key: value for key, value in os.environ.items() if key != "SAO_TOKEN"}
    env |= {
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        "OMP_WAIT_POLICY": "passive",
        "KMP_BLOCKTIME": "0",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONUNBUFFERED": "1",
    }
    return env | dict(extra or {})


def exit_with_parent() -> None:
    """Called in a child that `Child.start` made: ends this process once the parent is gone.

    The parent holds the other end of our stdin and never writes to it: end-of-file means that it died.
    """

    def watch() -> None:
        while os.read(0, 4096):
            pass
        os._exit(1)

    threading.Thread(target=watch, name="exit-with-parent", daemon=True).start()


@contextlib.contextmanager
def loading() -> Iterator[None]:
    """For imports: what they make stays as long as the process, so the collector never looks for garbage in it.

    Torch and what stands on it are 400,000 objects: 0.2 s for each full collection, of which a start makes several.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


class Child:
    """A running child process, its log and its name for messages."""

    def __init__(self, name: str, process: subprocess.Popen[bytes], log: Path) -> None:
        self.name = name
        self.log = log
        self._process = process

    @classmethod
    def start(cls, name: str, argv: Sequence[str], *, env: Mapping[str, str], log: Path) -> Child:
        """Start `argv` in its own process group with stdout and stderr appended to `log`."""
        log.parent.mkdir(parents=True, exist_ok=True)
        try:
            with log.open("ab") as file:
                process = subprocess.Popen(
                    list(argv), stdin=subprocess.PIPE, stdout=file, stderr=file, env=dict(env), start_new_session=True
                )
        except OSError as error:
            raise ProcessDied(
                f"{name} could not be started: {error}", fix=f"check the interpreter {argv[0]}"
            ) from error
        return cls(name, process, log)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """None while it runs."""
        return self._process.poll()

    async def wait(self) -> int:
        """Return its exit status once it has ended."""
        while (code := self._process.poll()) is None:
            await asyncio.sleep(0.05)
        return code

    def died(self, doing: str) -> ProcessDied:
        """The error that names this process, what it was doing, and the end of its log."""
        code = self.returncode
        how = (
            f"was killed by {signal.Signals(-code).name}"
            if code is not None and code < 0
            else f"ended with status {code}"
        )
        lines = tail(self.log)
        shown = "".join(f"\n       │ {line}" for line in lines.splitlines())
        return ProcessDied(f"the {self.name} {how} while {doing}{shown}", fix=f"its whole log: {self.log}")

    async def stop(self, grace_s: float = 5.0) -> None:
        """End the whole group: politely, then for good."""
        for sig, patience in ((signal.SIGTERM, grace_s), (signal.SIGKILL, 5.0)):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, sig)
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self.wait(), patience)
                break
        # The leader may be gone while a grandchild lingers.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        if self._process.stdin is not None:
            self._process.stdin.close()


def interpreter(configured: str | None) -> str:
    """The Python of a child: the configured one, whose `~` is expanded, or ours."""
    return str(Path(configured).expanduser()) if configured else sys.executable
