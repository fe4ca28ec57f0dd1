"""Starting SGLang's own server and waiting until it serves. Imports no torch."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx

from saocli.config.engine import EngineConfig
from saocli.config.trainer import Device
from saocli.engine.client import HttpEngine
from saocli.engine.sglang.command import OWN_FLAGS, SPARE_TOKENS, server_arguments, server_environment
from saocli.engine.sglang.flags import arguments, known_flags
from saocli.engine.sglang.publisher import FromFolder, PausedPublisher, Way
from saocli.errors import EngineError, MachineError, ProcessDied
from saocli.process import Child, interpreter, tail

_POLL_S = 0.1
# What SGLang logs as it starts → what is told; in the order in which they come.
_PHASES = (
    ("server_args=", "starting its processes"),
    ("Load weight begin", "loading weights"),
    ("KV Cache is allocated", "allocating the KV cache"),
    ("Capture cuda graph begin", "capturing CUDA graphs"),
    ("Uvicorn running", "warming up"),
)
_BUILD = (
    "give SGLang an environment of its own and set engine.python to its interpreter: "
    "on a CPU tests/sglang/build_env.sh builds one, on GPUs `pip install sglang==0.5.23` does"
)


async def start_sglang(
    config: EngineConfig,
    *,
    model_folder: Path,
    version: str,
    context_length: int,
    seed: int,
    log: Path,
    on_progress: Callable[[str], None] | None = None,
    way: Way | None = None,
    gpus: str | None = None,
    name: str = "SGLang engine",
) -> HttpEngine:
    """Serve the HF folder `model_folder` as `version` by `sglang.launch_server`; returns once it answers.

    The server listens on loopback and takes only requests with a key made here. `seed` fixes what requests draw, given
    their order; a restarted engine should be given another. `on_progress` is told each phase as it begins. `way` brings
    weights there; None: SGLang reads the release's folder. `gpus` is its CUDA_VISIBLE_DEVICES; None: ours. Every
    process writes to `log` and ends with this one.

    On a CPU SGLang ignores the seed that a request brings.

    Raises:
        MachineError: `engine.python` is no interpreter with SGLang.
        ConfigError: `engine.flags` has what that SGLang does not take.
        ProcessDied: it ended, or was not ready after `config.start_timeout_s`; with the end of its log.
    """
    tell = on_progress or (lambda phase: None)
    python = interpreter(config.python)
    tell(f"SGLang {await asyncio.to_thread(sglang_version, python)}")
    extra: list[str] = []
    if config.flags:
        tell("checking engine.flags")
        extra = arguments(config.flags, await asyncio.to_thread(known_flags, python), OWN_FLAGS)
    port, key = _free_port(), secrets.token_hex(32)  # no other letters: "-…" would be taken for a flag
    env = server_environment(config, spare_positions=_has_spare_positions(model_folder, context_length), gpus=gpus)
    _private(log, _opening(config))
    with _key_file(log.with_suffix(".keys.yaml"), key) as keys:
        argv = server_arguments(
            config,
            model_folder=model_folder,
            version=version,
            context_length=context_length,
            seed=seed,
            port=port,
            secrets=keys,
        )
        child = Child.start(name, [python, *argv, *extra], env=env, log=log)
        engine = HttpEngine(
            f"http://127.0.0.1:{port}",
            key=key,
            child=child,
            publisher=PausedPublisher(config, way or FromFolder(), folder=model_folder, version=version),
            context_length=context_length,
        )
        await _ready(config, engine, child, version, tell)
    return engine


def sglang_version(python: str) -> str:
    """The version of SGLang in interpreter `python`; raises MachineError where there is none. Imports nothing of it."""
    ask = "import importlib.metadata as m; print(m.version('sglang'))"
    whose = "engine.python is" if python != sys.executable else "engine.python is not set, and this interpreter is"
    try:
        done = subprocess.run([python, "-c", ask], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.SubprocessError) as error:
        raise MachineError(f"{whose} {python}, which could not be run: {error}", fix=_BUILD) from error
    if done.returncode != 0:
        raise MachineError(f"{whose} {python}, which has no SGLang", fix=_BUILD)
    return done.stdout.strip()


async def _ready(
    config: EngineConfig, engine: HttpEngine, child: Child, version: str, tell: Callable[[str], None]
) -> None:
    """Return once it serves `version`; otherwise end it and raise."""
    try:
        async with asyncio.timeout(config.start_timeout_s):
            await _healthy(child, engine.url, tell)
        if (serving := await engine.version()) != version:
            raise EngineError(f"SGLang serves {serving}, not {version}")
    except TimeoutError:
        await engine.close()
        raise ProcessDied(
            f"the {child.name} was not ready after {config.start_timeout_s:g} s\n{tail(child.log)}",
            fix=f"raise engine.start_timeout_s, or see its log: {child.log}",
        ) from None
    except (EngineError, ProcessDied, asyncio.CancelledError):
        await engine.close()
        raise


async def _healthy(child: Child, url: str, tell: Callable[[str], None]) -> None:
    """Return once /health says yes; tell each phase that the log reaches, and how long it has been."""
    started, begin, shown = time.monotonic(), child.log.stat().st_size, ""
    async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=2.0) as http:
        while True:
            if child.returncode is not None:
                raise child.died("starting")
            with contextlib.suppress(httpx.TransportError):
                if (await http.get("/health")).status_code == 200:
                    return
            phase = f"{_phase(child.log, begin)} · {(time.monotonic() - started) // 5 * 5:.0f} s"
            if phase != shown:
                tell(phase)
                shown = phase
            await asyncio.sleep(_POLL_S)


def _phase(log: Path, begin: int) -> str:
    """How far the start has come, by what the log says after byte `begin`."""
    with log.open("rb") as file:
        file.seek(begin)
        said = file.read().decode(errors="replace")
    return next((phase for mark, phase in reversed(_PHASES) if mark in said), "importing SGLang")


def _has_spare_positions(folder: Path, context_length: int) -> bool:
    """False where the context length is the model's own to within SPARE_TOKENS; beyond it SGLang itself objects."""
    try:
        positions = json.loads((folder / "config.json").read_text()).get("max_position_embeddings")
    except (OSError, ValueError) as error:
        raise EngineError(f"{folder} holds no readable config.json: {error}") from error
    return positions is None or not context_length <= positions < context_length + SPARE_TOKENS


def _opening(config: EngineConfig) -> str:
    """The log's first line."""
    if config.device is not Device.CPU:
        return ""
    return "On a CPU SGLang's compiled kernels do not exist: a stub `sgl_kernel` stands in, and torch computes.\n"


@contextlib.contextmanager
def _key_file(path: Path, key: str) -> Iterator[Path]:
    """A file of arguments that holds the key, for as long as SGLang starts: it is read once."""
    path.unlink(missing_ok=True)
    _private(path, f"api-key: {key}\nadmin-api-key: {key}\n")
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)


def _private(path: Path, text: str) -> None:
    """Append to a file that nobody else may read: SGLang logs all of its arguments, the keys among them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "a") as file:
        os.chmod(path, 0o600)
        file.write(text)


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port
