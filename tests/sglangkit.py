"""The real SGLang server for tests: where its environment is, how to start it, and a sender of weights."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import pytest

from saocli.broadcast import TensorSpec
from saocli.config.engine import EngineConfig, EngineKind
from saocli.engine.client import HttpEngine
from saocli.engine.sglang.launch import start_sglang
from saocli.engine.sglang.publisher import Way
from saocli.errors import TrainerError

P, T = ParamSpec("P"), TypeVar("T")
ENVIRONMENT = Path(os.environ.get("SAO_SGLANG_ENV", "~/.cache/sao/sglang-env")).expanduser()
NEEDS_SGLANG = (
    # Starting it takes half a minute, and several times that on a busy machine.
    pytest.mark.slow,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(
        not (ENVIRONMENT / "recipe.sha256").is_file(),
        reason="no SGLang environment: build it with tests/sglang/build_env.sh",
    ),
)


def needs_sglang(test: Callable[P, T]) -> Callable[P, T]:
    """All of these marks."""
    for mark in NEEDS_SGLANG:
        test = mark(test)
    return test


def config(**values: Any) -> EngineConfig:
    python = str(ENVIRONMENT / "bin/python")
    return EngineConfig(
        **{"kind": EngineKind.SGLANG, "python": python, "threads": 1, "start_timeout_s": 900.0, **values}
    )


async def sglang(
    folder: Path, log: Path, slots: int, *, version: str = "v0", way: Way | None = None, **values: Any
) -> HttpEngine:
    """SGLang serving `folder` with 2048 tokens of context."""
    return await start_sglang(
        config(slots=slots, **values),
        model_folder=folder,
        version=version,
        context_length=2048,
        seed=0,
        log=log,
        way=way,
    )


class ProcessSender:
    """`distributed.Sender` over a process of its own, as a trainer's first rank is one."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._sent = 0
        self.dies_in_bucket: int | None = None  # counted from 0 after `specs`

    @classmethod
    async def start(cls) -> ProcessSender:
        script = Path(__file__).parent / "sglang" / "sender.py"
        pipe = asyncio.subprocess.PIPE
        env = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[1])}
        return cls(await asyncio.create_subprocess_exec(sys.executable, str(script), stdin=pipe, stdout=pipe, env=env))

    async def read(self, folder: Path) -> None:
        """Let these be its weights."""
        await self._do("read", folder=str(folder))

    def joined(self) -> bool:
        return self._process.returncode is None

    async def listen(self) -> tuple[str, int]:
        host, port = await self._do("listen")
        return host, port

    async def join(self, *, world_size: int, group: str, backend: str) -> None:
        await self._do("join", world_size=world_size, group=group, backend=backend)

    async def specs(self) -> Sequence[TensorSpec]:
        self._sent = 0
        return [
            TensorSpec(name=name, dtype=dtype, shape=tuple(shape)) for name, dtype, shape in await self._do("specs")
        ]

    async def send(self, first: int, last: int) -> None:
        if self._sent == self.dies_in_bucket:
            await self.kill()
        self._sent += 1
        await self._do("send", first=first, last=last)

    async def leave(self) -> None:
        await self._do("leave")

    async def kill(self) -> None:
        if self._process.returncode is None:
            self._process.kill()
            await self._process.wait()

    async def _do(self, what: str, **values: Any) -> Any:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None and stdout is not None
        try:
            stdin.write(json.dumps({"do": what, **values}).encode() + b"\n")
            await stdin.drain()
            return json.loads(await stdout.readline())["result"]
        except (ConnectionError, ValueError) as error:
            raise TrainerError(f"the sender died while told to {what}") from error
