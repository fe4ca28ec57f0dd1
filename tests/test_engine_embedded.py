"""The embedded engine beyond the contract: seeds, penalties, its process, its key, what it refuses."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from enginekit import VOCAB, ask, final, llama, plain_logprobs, save

from saocli.config.engine import EngineConfig
from saocli.config.trainer import Device, DType
from saocli.engine.client import HttpEngine
from saocli.engine.embedded.launch import start_embedded
from saocli.errors import ConfigError, EngineError, ProcessDied
from saocli.types import FinishReason

pytestmark = pytest.mark.asyncio(loop_scope="module")
PROMPT = tuple(b"Once")


async def start(folder: Path, log: Path, *, seed: int = 0, context: int = 2048, **options: Any) -> HttpEngine:
    config = EngineConfig(**{"threads": 1, "slots": 8, **options})
    engine = await start_embedded(config, model_folder=folder, version="v0", context_length=context, seed=seed, log=log)
    assert isinstance(engine, HttpEngine)
    return engine


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(llama(5, eos_token_id=None), tmp_path_factory.mktemp("model"))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[HttpEngine]:
    engine = await start(folder, tmp_path_factory.mktemp("logs") / "engine.log")
    yield engine
    await engine.close()


async def post(engine: HttpEngine, path: str, body: dict[str, Any]) -> httpx.Response:
    """A request as any SGLang client would send it."""
    async with httpx.AsyncClient(base_url=engine.url, trust_env=False, timeout=30) as http:
        headers = {"Authorization": engine._http.headers["Authorization"]}
        return await http.post(path, json=body, headers=headers)


async def test_a_seed_fixes_the_tokens_whoever_is_beside(engine: HttpEngine) -> None:
    seeds = [1, 2, 3, 1, 4, 5, 6, 7]
    alone = [await final(engine, ask(PROMPT, seed=seed, max_new_tokens=80)) for seed in seeds]
    together = await asyncio.gather(*(final(engine, ask(PROMPT, seed=seed, max_new_tokens=80)) for seed in seeds))
    for one, other in zip(alone, together, strict=True):
        assert one.output_ids == other.output_ids
        assert max(abs(a - b) for a, b in zip(one.logprobs, other.logprobs, strict=True)) < 1e-5  # type: ignore[operator]
    assert alone[0] == alone[3]
    assert len({chunk.output_ids for chunk in alone}) == 7


@pytest.mark.slow
async def test_without_a_seed_the_engines_own_decides(folder: Path, tmp_path: Path) -> None:
    answers = []
    for number, seed in enumerate((1, 1, 2)):
        engine = await start(folder, tmp_path / f"{number}.log", seed=seed)
        answers.append([(await final(engine, ask(PROMPT, max_new_tokens=30))).output_ids for _ in range(2)])
        await engine.close()
    assert answers[0] == answers[1] != answers[2]
    assert answers[0][0] != answers[0][1]


async def test_penalties_change_what_is_said(engine: HttpEngine) -> None:
    plain = await final(engine, ask(PROMPT, temperature=0.0, max_new_tokens=60))
    varied = await final(engine, ask(PROMPT, temperature=0.0, max_new_tokens=60, frequency_penalty=2.0))
    assert len(set(varied.output_ids)) > len(set(plain.output_ids))


async def test_bf16_agrees_with_fp32_to_its_precision(folder: Path, tmp_path: Path) -> None:
    engine = await start(folder, tmp_path / "engine.log", dtype=DType.BF16)
    chunk = await final(engine, ask(PROMPT, max_new_tokens=40))
    await engine.close()
    expected = plain_logprobs(folder, PROMPT, chunk.output_ids, 1.0)
    assert 0 < max(abs(a - b) for a, b in zip(chunk.logprobs, expected, strict=True)) < 0.1  # type: ignore[operator]


async def test_an_aborted_request_is_answered_with_what_it_has(engine: HttpEngine) -> None:
    running = asyncio.create_task(
        post(
            engine,
            "/generate",
            {"rid": "long", "input_ids": [1], "return_logprob": True, "sampling_params": {"max_new_tokens": 2000}},
        )
    )
    await asyncio.sleep(0.3)
    assert (await post(engine, "/abort_request", {"rid": "long"})).status_code == 200
    response = await running
    answer = response.json()
    assert response.status_code == 200
    assert answer["meta_info"]["finish_reason"]["type"] == "abort"
    assert 0 < len(answer["output_ids"]) == len(answer["meta_info"]["output_token_logprobs"]) < 2000


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_hangs_up_frees_its_slot(engine: HttpEngine, stream: bool) -> None:
    body = {"input_ids": [1], "stream": stream, "sampling_params": {"max_new_tokens": 2000}}

    async def hang_up() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await post(engine, "/generate", body)

    await asyncio.gather(*(hang_up() for _ in range(8)))
    async with asyncio.timeout(2):
        await final(engine, ask(PROMPT, max_new_tokens=1))


@pytest.mark.alone
async def test_a_small_answer_does_not_wait_for_the_network(engine: HttpEngine) -> None:
    await engine.version()
    started = time.perf_counter()
    for _ in range(20):
        await engine.version()
    assert (time.perf_counter() - started) / 20 < 0.02  # 0.04 with Nagle's algorithm


async def test_a_load_may_abort_what_runs(engine: HttpEngine, folder: Path) -> None:
    running = asyncio.create_task(final(engine, ask(PROMPT, max_new_tokens=2000)))
    await asyncio.sleep(0.3)
    body = {"model_path": str(folder), "weight_version": "v0", "abort_all_requests": True}
    assert (await post(engine, "/update_weights_from_disk", body)).json()["success"] is True
    assert (await running).finish_reason is FinishReason.ABORT


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"sampling_params": {"topp": 0.9}}, "unknown field in sampling_params: topp"),
        ({"input_ids": []}, "at least one token"),
        ({"input_ids": [VOCAB]}, "input_ids"),
        ({"input_ids": "text"}, "input_ids"),
        ({"sampling_params": {"temperature": -1}}, "temperature"),
        ({"sampling_params": {"temperature": 1e-9}}, "temperature"),
        ({"sampling_params": {"top_p": "high"}}, "top_p"),
        ({"sampling_params": {"max_new_tokens": 0}}, "max_new_tokens"),
        ({"sampling_params": {"stop": [1]}}, "stop"),
    ],
)
async def test_a_bad_request_is_refused_by_name(engine: HttpEngine, change: dict[str, Any], why: str) -> None:
    response = await post(engine, "/generate", {"input_ids": [1], "sampling_params": {"max_new_tokens": 2}} | change)
    assert response.status_code == 400
    assert why in response.json()["error"]["message"]


async def test_only_the_key_opens_it(engine: HttpEngine) -> None:
    async with httpx.AsyncClient(base_url=engine.url, trust_env=False) as http:
        assert (await http.get("/health")).status_code == 200
        assert (await http.get("/model_info")).status_code == 401
        assert (await http.post("/abort_request", json={}, headers={"Authorization": "Bearer x"})).status_code == 401


async def test_a_killed_engine_is_named_and_leaves_nothing(folder: Path, tmp_path: Path) -> None:
    engine = await start(folder, tmp_path / "engine.log")
    assert engine.child is not None
    running = asyncio.create_task(final(engine, ask(PROMPT, max_new_tokens=2000)))
    await asyncio.sleep(0.3)
    os.kill(engine.child.pid, signal.SIGKILL)
    with pytest.raises(ProcessDied, match="SIGKILL"):
        await asyncio.wait_for(running, 5)
    with pytest.raises(ProcessDied, match=r"engine\.log"):
        await engine.version()
    await engine.close()
    with pytest.raises(ProcessLookupError):
        os.killpg(engine.child.pid, 0)


async def test_close_ends_the_process_in_mid_generation(folder: Path, tmp_path: Path) -> None:
    engine = await start(folder, tmp_path / "engine.log")
    assert engine.child is not None
    running = asyncio.create_task(final(engine, ask(PROMPT, max_new_tokens=2000)))
    await asyncio.sleep(0.3)
    await engine.close()
    await engine.close()
    with pytest.raises((EngineError, ProcessDied)):
        await running
    assert engine.child.returncode is not None


async def test_dying_at_start_says_why(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    with pytest.raises(ProcessDied, match="no model could be loaded") as caught:
        await start(tmp_path / "model", tmp_path / "engine.log")
    assert str(tmp_path / "engine.log") in str(caught.value)


async def test_a_context_beyond_the_model_is_refused_at_start(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ProcessDied, match="max_position_embeddings"):
        await start(folder, tmp_path / "engine.log", context=4096)


async def test_not_ready_in_time_is_an_error_and_leaves_nothing(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ProcessDied, match="not ready after"):
        await start(folder, tmp_path / "engine.log", start_timeout_s=0.3)


async def test_a_gpu_is_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"engine\.device"):
        await start(folder, tmp_path / "engine.log", device=Device.GPU)


async def test_a_shared_beginning_is_copied_and_never_outlives_its_weights(folder: Path, tmp_path: Path) -> None:
    """Prompts that begin alike, one after another and side by side, answer as a plain forward of the whole would."""
    engine = await start(folder, tmp_path / "engine.log", slots=3)
    try:
        beginning = tuple(b"two plus one is three, one plus one is two, ")
        prompts = [beginning + tuple(end) for end in (b"four", b"four plus", b"5 plus 4 makes", b"four")]

        async def check(weights: Path) -> None:
            requests = [ask(prompt, seed=seed, max_new_tokens=20) for seed, prompt in enumerate(prompts)]
            one_by_one = [await final(engine, request) for request in requests]
            together = await asyncio.gather(*(final(engine, request) for request in requests))
            for prompt, chunks in zip(prompts, zip(one_by_one, together, strict=True), strict=True):
                for chunk in chunks:
                    expected = plain_logprobs(weights, prompt, chunk.output_ids, 1.0)
                    assert chunk.logprobs == pytest.approx(expected, abs=1e-5)

        await check(folder)
        other = save(llama(6, eos_token_id=None), tmp_path / "other")
        await engine.load(other, "v1")
        await check(other)
    finally:
        await engine.close()
