"""The engines of a run as its configuration asks for them: whose they are, what a restart draws, what ends them."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from enginekit import ask, final, llama, save

from saocli.config.engine import EngineConfig
from saocli.config.run import RunConfig
from saocli.engine.embedded.launch import start_embedded
from saocli.errors import ConfigError, EngineError, ProcessDied
from saocli.wire.engines import Engines, open_engines

PROMPT = tuple(b"What is 2 + 2?")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    root = tmp_path_factory.mktemp("weights")
    return [save(llama(seed, eos_token_id=None), root / f"v{seed}") for seed in range(2)]


@asynccontextmanager
async def opened(folder: Path, logs: Path, said: list[str], **engine: object) -> AsyncIterator[Engines]:
    config = RunConfig(
        name="t",
        scenario="s",
        context_length=512,
        engine=EngineConfig(threads=1, **engine),  # type: ignore[arg-type]
    )
    engines = await open_engines(
        config, folder=folder, version="s@0", logs=logs, progress=lambda _: None, say=said.append
    )
    try:
        yield engines
    finally:
        await engines.engine.close()


async def test_a_restarted_engine_draws_anew_but_a_seed_decides_and_one_that_is_given_up_ends_the_waiting(
    folders: list[Path], tmp_path: Path
) -> None:
    said: list[str] = []
    async with opened(folders[0], tmp_path, said, restarts=1) as engines:
        unseeded, seeded = ask(PROMPT, max_new_tokens=40), ask(PROMPT, max_new_tokens=40, seed=7)
        before = [await final(engines.engine, request) for request in (unseeded, seeded)]
        assert engines.down is None
        first = engines.processes()["embedded engine"]
        assert first["restarts"] == 0
        os.kill(first["pid"], signal.SIGKILL)
        async with asyncio.timeout(10):
            while not said:
                await asyncio.sleep(0.01)
        assert engines.down == "the engine is restarting"
        assert engines.processes()["embedded engine"] == {"pid": None, "alive": False, "restarts": 1}
        async with asyncio.timeout(60):
            while engines.down:
                await asyncio.sleep(0.05)
        after = [await final(engines.engine, request) for request in (unseeded, seeded)]
        waiting = asyncio.create_task(engines.given_up())
        await asyncio.sleep(0.1)
        assert not waiting.done()
        os.kill(engines.processes()["embedded engine"]["pid"], signal.SIGKILL)
        with pytest.raises(ProcessDied, match="embedded engine was killed by SIGKILL"):
            await asyncio.wait_for(waiting, 5)
    assert before[0].output_ids != after[0].output_ids
    assert before[1] == after[1]
    assert said == [
        "the embedded engine was killed by SIGKILL while serving: starting it again with s@0 (1 of 1 in a row)"
    ]
    assert f"=== {said[0]}\n" in (tmp_path / "engine.log").read_text()


async def test_when_one_of_several_does_not_start_none_is_left(
    folders: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\ncase "$*" in *engine-2*) sleep 1; exit 3;; esac\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    package = str(Path(__file__).parents[1])
    monkeypatch.setenv("PYTHONPATH", package)
    with pytest.raises(ProcessDied, match="embedded engine 2 ended with status 3"):
        async with opened(folders[0], tmp_path, [], replicas=2, python=str(python)):
            pass
    assert not [pid for pid in Path("/proc").glob("[0-9]*") if str(tmp_path) in _command(pid)]


def _command(process: Path) -> str:
    try:
        return (process / "cmdline").read_bytes().decode()
    except OSError:
        return ""


async def test_running_servers_are_used_with_the_key_of_the_environment(
    folders: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = await start_embedded(
        EngineConfig(threads=1),
        model_folder=folders[1],
        version="theirs",
        context_length=512,
        seed=0,
        log=tmp_path / "theirs.log",
    )
    try:
        named = {"urls": [theirs.url], "key_env": "THEIR_KEY"}
        monkeypatch.delenv("THEIR_KEY", raising=False)
        with pytest.raises(ConfigError, match="THEIR_KEY, and that environment variable is not set"):
            async with opened(folders[0], tmp_path, [], **named):
                pass
        monkeypatch.setenv("THEIR_KEY", theirs._http.headers["authorization"].removeprefix("Bearer "))
        async with opened(folders[0], tmp_path, [], **named) as engines:
            assert engines.detail == f"attached to {theirs.url}"
            assert engines.processes() == {f"engine at {theirs.url}": {"pid": None, "alive": True}}
            assert (await final(engines.engine, ask(PROMPT, max_new_tokens=4))).spans[0].version == "s@0"
            assert theirs.child is not None
            os.kill(theirs.child.pid, signal.SIGKILL)
            with pytest.raises(EngineError, match=theirs.url):
                await final(engines.engine, ask(PROMPT, max_new_tokens=4))
            assert engines.down == f"no answer from {theirs.url}"
    finally:
        await theirs.close()
