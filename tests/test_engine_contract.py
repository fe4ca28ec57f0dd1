"""What every engine must do, whichever it is: written against the `Engine` protocol and transformers' own forward.

An engine takes part by a factory in `ENGINES`: (folder, log, slots) -> Engine that serves `folder` as "v0", or the
version given, with 2048 tokens of context. The real SGLang does where its environment is (`tests/sglang/build_env.sh`).
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import time
from collections.abc import AsyncIterator, Callable
from itertools import pairwise
from pathlib import Path
from typing import Protocol

import pytest
import pytest_asyncio
import torch
from enginekit import BC, EOS, ask, final, llama, plain_logprobs, save, scripted
from runkit import descendants, wait_gone
from safetensors.torch import load_file, save_file
from sglangkit import NEEDS_SGLANG, sglang

from saocli.config.engine import EngineConfig
from saocli.engine.base import Engine, GenerateChunk, GenerateRequest
from saocli.engine.client import HttpEngine
from saocli.engine.embedded.launch import start_embedded
from saocli.engine.supervised import SupervisedEngine
from saocli.errors import ContextLengthExceeded, EngineError, EngineRestarting
from saocli.types import FinishReason, Span

pytestmark = pytest.mark.asyncio(loop_scope="module")


class Factory(Protocol):
    async def __call__(self, folder: Path, log: Path, slots: int, *, version: str = "v0") -> HttpEngine: ...


PROMPT = tuple(b"What is 2 + 2?")


async def embedded(folder: Path, log: Path, slots: int, *, version: str = "v0") -> HttpEngine:
    config = EngineConfig(threads=1, slots=slots)
    return await start_embedded(config, model_folder=folder, version=version, context_length=2048, seed=0, log=log)


ENGINES: dict[str, Factory] = {"embedded": embedded, "sglang": sglang}
PARAMS = [pytest.param("embedded"), pytest.param("sglang", marks=NEEDS_SGLANG)]


@pytest.fixture(scope="module", params=PARAMS)
def factory(request: pytest.FixtureRequest) -> Factory:
    return ENGINES[request.param]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Weights v0 … v3 of one architecture that never ends by itself."""
    root = tmp_path_factory.mktemp("weights")
    return [save(llama(seed, eos_token_id=None), root / f"v{seed}") for seed in range(4)]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(
    factory: Factory, folders: list[Path], tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Engine]:
    engine = await factory(folders[0], tmp_path_factory.mktemp("logs") / "engine.log", 8)
    yield engine
    await engine.close()


@pytest_asyncio.fixture(loop_scope="module")
async def engine(shared: Engine, folders: list[Path]) -> Engine:
    """The shared engine, serving v0."""
    if await shared.version() != "v0":
        await shared.load(folders[0], "v0")
    return shared


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def script(factory: Factory, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Engine]:
    """Two slots, and a model that says AB<eos>, x BC y, 1 2 3 … 9 1 2 …, and Y Z (Z is its second end token)."""
    root = tmp_path_factory.mktemp("scripted")
    digits = {ord(str(d)): ord(str(d % 9 + 1)) for d in range(1, 10)}
    said = {ord("A"): ord("B"), ord("B"): EOS, ord("x"): BC, BC: ord("y"), ord("Y"): ord("Z"), **digits}
    engine = await factory(scripted(root / "model", said), root / "engine.log", 2)
    yield engine
    await engine.close()


def gap(chunk: GenerateChunk, expected: list[float]) -> float:
    """Largest absolute difference to the recorded log-probs, in nats."""
    assert len(expected) == len(chunk.logprobs)
    return max(abs(a - b) for a, b in zip(chunk.logprobs, expected, strict=True) if a is not None)


@pytest.mark.parametrize("temperature", [1.0, 0.6])
async def test_logprobs_are_the_models_at_the_sampling_temperature(
    engine: Engine, folders: list[Path], temperature: float
) -> None:
    chunk = await final(engine, ask(PROMPT, temperature=temperature, max_new_tokens=200))
    assert chunk.finish_reason is FinishReason.LENGTH
    assert len(chunk.output_ids) == 200
    assert chunk.spans == (Span(version="v0", start=0, end=200),)
    assert gap(chunk, plain_logprobs(folders[0], PROMPT, chunk.output_ids, temperature)) < 1e-5
    other = plain_logprobs(folders[0], PROMPT, chunk.output_ids, 1.6 - temperature)
    assert gap(chunk, other) > 0.1  # the temperature is told apart


async def test_temperature_zero_is_greedy_with_logprobs_at_one(engine: Engine, folders: list[Path]) -> None:
    chunk = await final(engine, ask(PROMPT, temperature=0.0, max_new_tokens=50))
    model = llama(0, eos_token_id=None)
    with torch.no_grad():
        logits = model(torch.tensor([[*PROMPT, *chunk.output_ids]])).logits[0, len(PROMPT) - 1 : -1]
    assert tuple(logits.argmax(-1).tolist()) == chunk.output_ids
    assert gap(chunk, plain_logprobs(folders[0], PROMPT, chunk.output_ids, 1.0)) < 1e-5


async def test_logprobs_are_of_the_whole_distribution_under_truncation(engine: Engine, folders: list[Path]) -> None:
    request = ask(PROMPT, temperature=0.8, top_p=0.5, top_k=20, min_p=0.01, max_new_tokens=100)
    chunk = await final(engine, request)
    assert gap(chunk, plain_logprobs(folders[0], PROMPT, chunk.output_ids, 0.8)) < 1e-5


async def test_eight_at_once_answer_as_one_after_another(engine: Engine) -> None:
    requests = [(PROMPT * (1 + i), 20 + 15 * i) for i in range(8)]  # ragged prompts and ends

    def asked(prompt: tuple[int, ...], tokens: int) -> GenerateRequest:
        return ask(prompt, temperature=0.0, max_new_tokens=tokens)

    alone = [await final(engine, asked(*request)) for request in requests]
    together = await asyncio.gather(*(final(engine, asked(*request)) for request in requests))
    for one, other in zip(alone, together, strict=True):
        assert one.output_ids == other.output_ids
        assert gap(one, list(other.logprobs)) < 1e-5  # type: ignore[arg-type]


async def test_a_stream_grows_to_the_same_kind_of_answer(engine: Engine) -> None:
    request = ask(PROMPT, temperature=0.0, max_new_tokens=300, stream=True)
    chunks = [chunk async for chunk in engine.generate(request)]
    whole = await final(engine, ask(PROMPT, temperature=0.0, max_new_tokens=300))
    assert len(chunks) > 1
    for earlier, later in pairwise(chunks):
        assert later.output_ids[: len(earlier.output_ids)] == earlier.output_ids
        assert earlier.finish_reason is None
    assert chunks[-1].output_ids == whole.output_ids
    assert chunks[-1].finish_reason is FinishReason.LENGTH


async def test_without_stream_there_is_one_chunk(engine: Engine) -> None:
    assert len([chunk async for chunk in engine.generate(ask(PROMPT, max_new_tokens=50))]) == 1


async def test_the_end_token_is_kept(script: Engine) -> None:
    chunk = await final(script, ask((ord("A"),), max_new_tokens=10))
    assert chunk.output_ids == (ord("B"), EOS)
    assert chunk.finish_reason is FinishReason.STOP
    assert chunk.stop_match is None


async def test_every_one_of_several_end_tokens_ends(script: Engine) -> None:
    assert (await final(script, ask((ord("Y"),), max_new_tokens=10))).output_ids == (ord("Z"),)


async def test_the_end_token_alone_is_an_answer_of_one_token(script: Engine) -> None:
    assert (await final(script, ask((ord("B"),), max_new_tokens=10))).output_ids == (EOS,)


async def test_a_stop_string_inside_a_token(script: Engine) -> None:
    chunk = await final(script, ask((ord("x"),), max_new_tokens=10, stop=("B",)))
    assert chunk.output_ids == (BC,)
    assert (chunk.finish_reason, chunk.stop_match) == (FinishReason.STOP, "B")


async def test_a_stop_string_across_tokens_far_into_the_response(script: Engine) -> None:
    never, match = "4321", "78912345678912345"
    chunk = await final(script, ask((ord("9"),), max_new_tokens=100, stop=(never, match)))
    assert bytes(chunk.output_ids) == b"12345678912345678912345"
    assert (chunk.finish_reason, chunk.stop_match) == (FinishReason.STOP, match)


async def test_a_prompt_that_does_not_fit_is_refused(engine: Engine) -> None:
    with pytest.raises(ContextLengthExceeded, match="2048"):
        await final(engine, ask(PROMPT * 147, max_new_tokens=16))


async def test_a_request_that_just_fits_is_served_whole(engine: Engine) -> None:
    chunk = await final(engine, ask(PROMPT * 146, temperature=0.0, max_new_tokens=4))
    assert len(chunk.output_ids) == 4


async def test_more_requests_than_slots_wait_their_turn(script: Engine) -> None:
    chunks = await asyncio.gather(*(final(script, ask((ord("1"),), max_new_tokens=50 + i)) for i in range(9)))
    assert [len(chunk.output_ids) for chunk in chunks] == [50 + i for i in range(9)]


async def test_hundreds_of_open_requests_are_all_answered(script: Engine) -> None:
    chunks = await asyncio.gather(*(final(script, ask((ord("1"),), max_new_tokens=2)) for _ in range(300)))
    assert {chunk.output_ids for chunk in chunks} == {(ord("2"), ord("3"))}


async def test_closing_the_iterator_frees_the_slot(script: Engine) -> None:
    streams = [script.generate(ask((ord("1"),), max_new_tokens=2000, stream=True)) for _ in range(2)]
    for stream in streams:
        await anext(stream)
    for stream in streams:
        await stream.aclose()  # type: ignore[attr-defined]
    async with asyncio.timeout(2):
        assert len((await final(script, ask((ord("1"),), max_new_tokens=1))).output_ids) == 1


async def test_cancelling_a_reader_frees_the_slot(script: Engine) -> None:
    readers = [asyncio.create_task(final(script, ask((ord("1"),), max_new_tokens=2000))) for _ in range(2)]
    await asyncio.sleep(0.1)
    for reader in readers:
        reader.cancel()
    async with asyncio.timeout(2):
        assert len((await final(script, ask((ord("1"),), max_new_tokens=1))).output_ids) == 1


async def test_running_generations_survive_weight_swaps(engine: Engine, folders: list[Path]) -> None:
    latest: dict[int, GenerateChunk] = {}

    async def follow(index: int) -> None:
        async for chunk in engine.generate(ask((index, *PROMPT), temperature=0.6, max_new_tokens=800, stream=True)):
            latest[index] = chunk

    async def reached(tokens: int) -> None:
        while len(latest) < 8 or min(len(chunk.output_ids) for chunk in latest.values()) < tokens:
            await asyncio.sleep(0.005)

    readers = [asyncio.create_task(follow(index)) for index in range(8)]
    for number in (1, 2, 3):
        await asyncio.wait_for(reached(120 * number), 60)
        await engine.load(folders[number], f"v{number}")
        assert await engine.version() == f"v{number}"
    await asyncio.gather(*readers)
    for index, chunk in latest.items():
        assert chunk.finish_reason is FinishReason.LENGTH
        assert [span.version for span in chunk.spans] == ["v0", "v1", "v2", "v3"]
        assert (chunk.spans[0].start, chunk.spans[-1].end) == (0, 800)
        assert all(a.end == b.start for a, b in pairwise(chunk.spans))
        for span in chunk.spans:
            expected = plain_logprobs(folders[int(span.version[1])], (index, *PROMPT), chunk.output_ids, 0.6)
            recorded = chunk.logprobs[span.start : span.end]
            differences = [abs(a - b) for a, b in zip(recorded, expected[span.start : span.end], strict=True)]  # type: ignore[operator]
            assert max(differences) < 1e-5


def _truncate(folder: Path) -> None:
    file = folder / "model.safetensors"
    os.truncate(file, file.stat().st_size - 100)


def _empty(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def _rewrite(change: Callable[[dict[str, torch.Tensor]], None]) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        tensors = load_file(folder / "model.safetensors")
        change(tensors)
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})

    return spoil


NORM = "model.norm.weight"
FAULTS: dict[str, Callable[[Path], None]] = {
    "truncated": _truncate,
    "no file": _empty,
    "a tensor missing": _rewrite(lambda tensors: tensors.__delitem__(NORM)),
    "wrong shape": _rewrite(lambda tensors: tensors.update({NORM: torch.ones(33)})),
    "wrong name": _rewrite(lambda tensors: tensors.update({"model.norms.weight": tensors.pop(NORM)})),
    "not floating point": _rewrite(lambda tensors: tensors.update({NORM: torch.ones(32, dtype=torch.int32)})),
}


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_load_that_fails_leaves_the_old_weights_serving(
    engine: Engine, folders: list[Path], tmp_path: Path, fault: str
) -> None:
    bad = tmp_path / "bad"
    shutil.copytree(folders[1], bad)
    FAULTS[fault](bad)
    with pytest.raises(EngineError, match="v9"):
        await engine.load(bad, "v9")
    assert await engine.version() == "v0"
    chunk = await final(engine, ask(PROMPT, max_new_tokens=40))
    assert chunk.spans == (Span(version="v0", start=0, end=40),)
    assert gap(chunk, plain_logprobs(folders[0], PROMPT, chunk.output_ids, 1.0)) < 1e-5


async def test_a_killed_engine_comes_back_with_the_weights_that_served(
    factory: Factory, folders: list[Path], tmp_path: Path
) -> None:
    """And a fresh engine answers as one whose weights were swapped, to the bit."""

    async def start(folder: Path, version: str) -> HttpEngine:
        return await factory(folder, tmp_path / "engine.log", 8, version=version)

    engine = await SupervisedEngine.begin(start, folder=folders[0], version="v0", restarts=1, tell=lambda _: None)
    try:
        await engine.load(folders[1], "v1")
        greedy = ask(PROMPT, temperature=0.0, max_new_tokens=60)
        before = await final(engine, greedy)
        assert before.spans == (Span(version="v1", start=0, end=60),)
        latest: dict[int, GenerateChunk] = {}

        async def follow(index: int) -> None:
            async for chunk in engine.generate(ask((index, *PROMPT), max_new_tokens=2000, stream=True)):
                latest[index] = chunk

        running = [asyncio.create_task(follow(index)) for index in range(8)]
        while len(latest) < 8:
            await asyncio.sleep(0.01)
        assert engine.pid is not None
        processes = {engine.pid, *descendants(engine.pid)}
        os.kill(engine.pid, signal.SIGKILL)
        killed = time.monotonic()
        ended = await asyncio.gather(*running, return_exceptions=True)
        assert {type(error) for error in ended} == {EngineRestarting}
        assert time.monotonic() - killed < 3
        with pytest.raises(EngineRestarting):
            await final(engine, greedy)
        while not (engine.restarts == 1 and engine.up):
            await asyncio.sleep(0.05)
        assert wait_gone(processes) == set()
        assert await engine.version() == "v1"
        after = await final(engine, greedy)
        assert (after.output_ids, after.spans) == (before.output_ids, before.spans)
        assert after.logprobs == before.logprobs
    finally:
        await engine.close()


async def test_a_publication_that_an_engine_died_of_is_made_again(folders: list[Path], tmp_path: Path) -> None:
    async def start(folder: Path, version: str) -> HttpEngine:
        return await embedded(folder, tmp_path / "engine.log", 8, version=version)

    engine = await SupervisedEngine.begin(start, folder=folders[0], version="v0", restarts=1, tell=lambda _: None)
    try:
        # Stopped, it dies in the middle of a publication for sure.
        assert engine.pid is not None
        os.kill(engine.pid, signal.SIGSTOP)
        loading = asyncio.create_task(engine.load(folders[2], "v2"))
        await asyncio.sleep(0.2)
        os.kill(engine.pid, signal.SIGKILL)
        await loading
        assert (engine.restarts, await engine.version()) == (1, "v2")
        chunk = await final(engine, ask(PROMPT, temperature=0.0, max_new_tokens=60))
        assert chunk.spans == (Span(version="v2", start=0, end=60),)
        assert gap(chunk, plain_logprobs(folders[2], PROMPT, chunk.output_ids, 1.0)) < 1e-5
    finally:
        await engine.close()
