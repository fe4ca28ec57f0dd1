"""Starting the embedded engine's process and waiting until it serves. Imports no torch."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Callable
from pathlib import Path

import saocli
from saocli.config.engine import EngineConfig
from saocli.config.trainer import Device
from saocli.engine.client import HttpEngine
from saocli.errors import ConfigError, ProcessDied
from saocli.process import Child, compute_env, interpreter, tail

KEY_VARIABLE = "SAO_ENGINE_KEY"
READY = "ready on port "  # begins the status file's last line
_POLL_S = 0.02


async def start_embedded(
    config: EngineConfig,
    *,
    model_folder: Path,
    version: str,
    context_length: int,
    seed: int,
    log: Path,
    on_progress: Callable[[str], None] | None = None,
    name: str = "embedded engine",
) -> HttpEngine:
    """Serve the HF folder `model_folder` as `version` from a process of its own; returns once it answers.

    `seed` fixes what requests without a seed draw, given their order; a restarted engine should be given another.
    `on_progress` is told each phase as it begins. The process writes to `log` and ends with this one; messages call it
    `name`.

    Raises:
        ConfigError: the device is not the CPU.
        ProcessDied: it ended, or was not ready after `config.start_timeout_s`; with the end of its log.
    """
    if config.device is not Device.CPU:
        raise ConfigError("the embedded engine runs on the CPU, but engine.device=gpu", fix="set engine.kind=sglang")
    key = secrets.token_urlsafe(32)
    status = log.with_suffix(".status")
    status.unlink(missing_ok=True)
    extra = {KEY_VARIABLE: key}
    if config.python is None:
        # This very package, installed or not; another interpreter brings its own.
        package = str(Path(saocli.__file__).parents[1])
        extra["PYTHONPATH"] = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")]))
    argv = [interpreter(config.python), "-m", "saocli.engine.embedded.server"]
    for option, value in {
        "model": model_folder.resolve(),
        "version": version,
        "context-length": context_length,
        "slots": config.slots,
        "threads": config.threads,
        "dtype": config.dtype.value,
        "seed": seed,
        "status": status,
    }.items():
        argv.append(f"--{option}={value}")
    child = Child.start(name, argv, env=compute_env(config.threads, extra), log=log)
    try:
        async with asyncio.timeout(config.start_timeout_s):
            port = await _ready_port(child, status, on_progress or (lambda phase: None))
    except TimeoutError:
        await child.stop()
        raise ProcessDied(
            f"the {name} was not ready after {config.start_timeout_s:g} s\n{tail(log)}",
            fix=f"raise engine.start_timeout_s, or see its log: {log}",
        ) from None
    except (ProcessDied, asyncio.CancelledError):
        await child.stop()
        raise
    return HttpEngine(f"http://127.0.0.1:{port}", key=key, child=child)


async def _ready_port(child: Child, status: Path, on_progress: Callable[[str], None]) -> int:
    """Follow the status file, a line per phase, to the one that names the port."""
    on_progress("starting the process")
    told = 0
    while True:
        ended = child.returncode is not None  # looked at first: a last line written just before is still read
        lines = status.read_text().split("\n")[:-1] if status.is_file() else []
        for line in lines[told:]:
            if line.startswith(READY):
                return int(line.removeprefix(READY))
            on_progress(line)
        told = len(lines)
        if ended:
            raise child.died("starting")
        await asyncio.sleep(_POLL_S)
