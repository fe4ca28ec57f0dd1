"""What only the real SGLang does: weights over a process group, the ways to pause, and its processes' end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from enginekit import ask, final, llama, plain_logprobs, save
from runkit import descendants, wait_gone
from sglangkit import NEEDS_SGLANG, ProcessSender, config, sglang

from saocli.config.engine import Pause
from saocli.engine.base import GenerateChunk
from saocli.engine.client import HttpEngine
from saocli.engine.sglang.distributed import FromGroup
from saocli.engine.sglang.publisher import FromFolder, PausedPublisher
from saocli.errors import EngineError, RunError
from saocli.types import FinishReason

pytestmark = [pytest.mark.asyncio(loop_scope="module"), *NEEDS_SGLANG]

PROMPT = tuple(b"What is 2 + 2?")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Weights v0 … v3 of one architecture that never ends by itself."""
    root = tmp_path_factory.mktemp("weights")
    return [save(llama(seed, eos_token_id=None), root / f"v{seed}") for seed in range(4)]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def sender() -> AsyncIterator[ProcessSender]:
    sender = await ProcessSender.start()
    yield sender
    await sender.kill()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(
    folders: list[Path], sender: ProcessSender, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[HttpEngine]:
    """Serves v0 and takes weights from the sender, in buckets of a few tensors."""
    way = FromGroup(config(), sender, bucket_bytes=40_000)
    engine = await sglang(folders[0], tmp_path_factory.mktemp("logs") / "engine.log", 8, way=way)
    yield engine
    await engine.close()


async def gap(engine: HttpEngine, folder: Path) -> float:
    """Largest difference, in nats, between the engine's log-probs and those of the folder's weights."""
    chunk = await final(engine, ask(PROMPT, max_new_tokens=60))
    expected = plain_logprobs(folder, PROMPT, chunk.output_ids, 1.0)
    return max(abs(a - b) for a, b in zip(chunk.logprobs, expected, strict=True) if a is not None)


async def started(
    engine: HttpEngine, tokens: int, **sampling: Any
) -> tuple[asyncio.Task[GenerateChunk], asyncio.Event]:
    """A running generation of `tokens` tokens, of which some are there."""
    some = asyncio.Event()

    async def follow() -> GenerateChunk:
        chunk = None
        async for chunk in engine.generate(ask(PROMPT, max_new_tokens=tokens, stream=True, **sampling)):
            if len(chunk.output_ids) >= 20:
                some.set()
        assert chunk is not None
        return chunk

    task = asyncio.create_task(follow())
    await asyncio.wait_for(some.wait(), 60)
    return task, some


async def test_nobody_without_the_key_gets_in_and_the_key_is_on_no_command_line(engine: HttpEngine) -> None:
    async with httpx.AsyncClient(base_url=engine.url, trust_env=False) as http:
        for path, body in {"/generate": {"input_ids": [1]}, "/update_weights_from_disk": {"model_path": "/m"}}.items():
            assert (await http.post(path, json=body)).status_code == 401
    assert engine.child is not None
    log = engine.child.log
    assert log.stat().st_mode & 0o077 == 0
    for pid in {engine.child.pid, *descendants(engine.child.pid)}:
        line = Path(f"/proc/{pid}/cmdline").read_bytes()
        assert b"api-key" not in line and b"api_key" not in line
    assert not list(log.parent.glob("*.yaml"))
    assert "a stub `sgl_kernel` stands in" in log.read_text()


async def test_weights_come_over_a_process_group(
    engine: HttpEngine, sender: ProcessSender, folders: list[Path]
) -> None:
    running, _ = await started(engine, 1900)
    for number in (1, 2):
        await sender.read(folders[number])
        await engine.load(folders[number], f"v{number}")
        assert await engine.version() == f"v{number}"
        await final(engine, ask(PROMPT, max_new_tokens=5))  # beside the running one, which so gets on too
    chunk = await running
    assert await gap(engine, folders[2]) < 1e-5
    assert chunk.finish_reason is FinishReason.LENGTH
    assert [span.version for span in chunk.spans] == ["v0", "v1", "v2"]
    for span in chunk.spans:
        expected = plain_logprobs(folders[int(span.version[1])], PROMPT, chunk.output_ids, 1.0)[span.start : span.end]
        recorded = chunk.logprobs[span.start : span.end]
        assert max(abs(a - b) for a, b in zip(recorded, expected, strict=True) if a is not None) < 1e-5


async def test_weights_other_than_the_folders_are_found_out(
    engine: HttpEngine, sender: ProcessSender, folders: list[Path]
) -> None:
    await sender.read(folders[1])  # as if a step had gone by between export and broadcast
    with pytest.raises(EngineError, match="after loading v3 the engine holds other weights"):
        await engine.load(folders[3], "v3")
    assert await engine.version() == "v2"
    assert await gap(engine, folders[2]) < 1e-5


async def test_a_sender_that_dies_leaves_the_old_weights_serving(
    engine: HttpEngine, sender: ProcessSender, folders: list[Path]
) -> None:
    await sender.read(folders[3])
    sender.dies_in_bucket = 1
    with pytest.raises(EngineError, match=r"v3 could not be sent|receiving v3"):
        await engine.load(folders[3], "v3")
    assert await engine.version() == "v2"
    assert await gap(engine, folders[2]) < 1e-5


async def test_paused_in_place_a_request_goes_on_where_it_was(engine: HttpEngine, folders: list[Path]) -> None:
    publisher = PausedPublisher(config(pause=Pause.IN_PLACE), FromFolder(), folder=folders[2], version="v2")
    running, _ = await started(engine, 400)
    await publisher.publish(engine, folders[1], "v1")
    chunk = await running
    assert len(chunk.output_ids) == 400
    assert [span.version for span in chunk.spans] == ["v2", "v1"]


async def test_paused_by_abort_a_request_ends_and_says_so(engine: HttpEngine, folders: list[Path]) -> None:
    publisher = PausedPublisher(config(pause=Pause.ABORT), FromFolder(), folder=folders[1], version="v1")
    running, _ = await started(engine, 1900)
    await publisher.publish(engine, folders[0], "v0")
    chunk = await running
    assert chunk.finish_reason is FinishReason.ABORT
    assert 20 <= len(chunk.output_ids) < 1900
    assert {span.version for span in chunk.spans} == {"v1"}
    assert await gap(engine, folders[0]) < 1e-5


class KeepsItsMemory:
    """The real server but for the two routes that end it on a CPU; remembers what was asked."""

    def __init__(self, engine: HttpEngine) -> None:
        self.engine = engine
        self.paths: list[str] = []

    async def command(self, path: str, body: Mapping[str, Any], *, doing: str) -> dict[str, Any]:
        self.paths.append(path)
        return {} if path.endswith("_memory_occupation") else await self.engine.command(path, body, doing=doing)


async def test_a_request_waits_while_the_engine_sleeps_and_goes_on_with_the_weights_that_wake_it(
    engine: HttpEngine, folders: list[Path]
) -> None:
    publisher = PausedPublisher(config(), FromFolder(), folder=folders[0], version="v0")
    control = KeepsItsMemory(engine)
    running, _ = await started(engine, 400)
    await publisher.sleep(control)
    late = asyncio.create_task(final(engine, ask(PROMPT, max_new_tokens=5)))
    done, _ = await asyncio.wait({running, late}, timeout=2.0)
    assert not done
    await publisher.publish(control, folders[1], "v1")
    assert [span.version for span in (await running).spans] == ["v0", "v1"]
    assert [span.version for span in (await late).spans] == ["v1"]
    assert len((await running).output_ids) == 400
    assert await gap(engine, folders[1]) < 1e-5
    load = ["/update_weights_from_disk", "/weights_checker", "/continue_generation"]
    asleep = ["/weights_checker", "/pause_generation", "/release_memory_occupation"]
    assert control.paths == [*asleep, "/pause_generation", "/resume_memory_occupation", *load]


async def test_it_ends_with_its_parent_and_says_so_to_who_waits(engine: HttpEngine) -> None:
    """The last one here. A parent that is killed closes the other end of its leash, which ends the whole group."""
    assert engine.child is not None
    pids = {engine.child.pid, *descendants(engine.child.pid)}
    running = [(await started(engine, 1900))[0] for _ in range(8)]
    stdin = engine.child._process.stdin
    assert stdin is not None
    stdin.close()
    for task in running:
        with pytest.raises(RunError, match=f"the {engine.child.name} ended|was killed"):
            await task
    assert await asyncio.to_thread(wait_gone, pids) == set()
