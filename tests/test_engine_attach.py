"""Servers that were running before us: they get our weights before they are used, and outlive us."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from enginekit import ask, final, llama, plain_logprobs, save
from sglangkit import NEEDS_SGLANG, sglang
from sglangkit import config as sglang_config

from saocli.config.engine import EngineConfig
from saocli.engine.attach import attach
from saocli.engine.client import HttpEngine
from saocli.engine.embedded.launch import start_embedded
from saocli.errors import EngineError
from saocli.types import Span

pytestmark = pytest.mark.asyncio(loop_scope="module")

PROMPT = tuple(b"What is 2 + 2?")
KINDS = {"embedded": EngineConfig(), "sglang": sglang_config()}
PARAMS = [pytest.param("embedded"), pytest.param("sglang", marks=NEEDS_SGLANG)]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    root = tmp_path_factory.mktemp("weights")
    return [save(llama(seed, eos_token_id=None), root / f"v{seed}") for seed in range(3)]


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=PARAMS)
async def running(
    request: pytest.FixtureRequest, folders: list[Path], tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[tuple[EngineConfig, HttpEngine]]:
    """Somebody's server, which serves weights of their own."""
    log = tmp_path_factory.mktemp("logs") / "engine.log"
    if request.param == "sglang":
        engine = await sglang(folders[0], log, 4, version="theirs")
    else:
        engine = await start_embedded(
            EngineConfig(threads=1), model_folder=folders[0], version="theirs", context_length=2048, seed=0, log=log
        )
    yield KINDS[request.param], engine
    await engine.close()


def key_of(engine: HttpEngine) -> str:
    return engine._http.headers["authorization"].removeprefix("Bearer ")


async def attached(running: tuple[EngineConfig, HttpEngine], folder: Path, key: str | None = None) -> HttpEngine:
    config, engine = running
    return await attach(
        config, engine.url + "/", key=key or key_of(engine), model_folder=folder, version="s@0", context_length=2048
    )


async def test_it_serves_our_weights_takes_later_ones_and_lives_on(
    running: tuple[EngineConfig, HttpEngine], folders: list[Path]
) -> None:
    ours = await attached(running, folders[1])
    assert ours.up
    for folder, version in ((folders[1], "s@0"), (folders[2], "s@1")):
        if version != "s@0":
            await ours.load(folder, version)
        chunk = await final(ours, ask(PROMPT, temperature=0.0, max_new_tokens=40))
        assert chunk.spans == (Span(version=version, start=0, end=40),)
        expected = plain_logprobs(folder, PROMPT, chunk.output_ids, 1.0)
        assert max(abs(a - b) for a, b in zip(chunk.logprobs, expected, strict=True) if a is not None) < 1e-5
    await ours.close()
    assert await running[1].version() == "s@1"


async def test_a_server_of_another_model_is_refused_and_serves_on(
    running: tuple[EngineConfig, HttpEngine], folders: list[Path], tmp_path: Path
) -> None:
    before = await running[1].version()
    other = save(llama(0, hidden=64, eos_token_id=None), tmp_path / "other")
    with pytest.raises(EngineError, match="the served model has"):
        await attached(running, other)
    assert await running[1].version() == before
    await final(running[1], ask(PROMPT, max_new_tokens=4))


async def test_a_wrong_key_is_refused(running: tuple[EngineConfig, HttpEngine], folders: list[Path]) -> None:
    with pytest.raises(EngineError, match=r"401|403"):
        await attached(running, folders[1], key="guess")


async def test_one_that_does_not_answer_is_away_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("saocli.engine.client._AWAY_S", 0.2)
    listener = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    listener.close()
    engine = HttpEngine(url)
    assert engine.up
    with pytest.raises(EngineError, match=url):
        await engine.version()
    assert not engine.up
    await asyncio.sleep(0.25)
    assert engine.up
    await engine.close()
