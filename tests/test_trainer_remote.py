"""The trainer as processes: checkpoints across processes, exports, and what happens when something breaks."""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import os
import resource
import signal
import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import torch
import torch.distributed.checkpoint as dcp
import trainerkit
from safetensors.torch import load_file
from trainerkit import QUICK, make_model, make_sample, mixed_batch, reference

from saocli.config.trainer import LrDecay, TrainerConfig
from saocli.errors import ProcessDied, TrainerError
from saocli.trainer.remote import RemoteTrainer
from saocli.types import Batch

pytestmark = pytest.mark.asyncio(loop_scope="module")
DECAYING = dataclasses.replace(QUICK, critic_warmup_steps=1, lr_decay=LrDecay.LINEAR, lr_decay_steps=8)
MARKER = "sao-complete.json"


def started(folder: Path, tmp: Path, config: TrainerConfig = DECAYING) -> AbstractAsyncContextManager[RemoteTrainer]:
    return trainerkit.started(folder, tmp, config)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_model(tmp_path_factory.mktemp("llama"))
    (folder / "tokenizer.json").write_text('{"kept": true}')
    return folder


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def trainer(llama: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RemoteTrainer]:
    """One trainer for the tests that leave it alive."""
    async with started(llama, tmp_path_factory.mktemp("shared"), QUICK) as trainer:
        yield trainer


def alive(pid: int) -> bool:
    """Whether the process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def state_of(trainer: RemoteTrainer, folder: Path) -> dict[str, torch.Tensor]:
    """Everything a checkpoint holds: actor, critic, both optimizers, schedule position, RNG."""
    await trainer.save(folder)
    everything: dict[str, torch.Tensor] = {}
    for part in ("actor", "critic"):
        reader = dcp.FileSystemReader(folder / part)
        entries = reader.read_metadata().state_dict_metadata
        state = {n: torch.empty(e.size, dtype=e.properties.dtype) for n, e in entries.items() if hasattr(e, "size")}
        dcp.load(state, storage_reader=reader, no_dist=True)
        saved = torch.load(folder / part / "common.pt", weights_only=False)
        everything |= {f"{part}.{name}": tensor for name, tensor in state.items()}
        everything[f"{part}.steps"] = saved["optimizer"]["state"]["common_step"]
        everything["rng"] = saved["common"]["rng"]["cpu"]
        everything["position"] = torch.tensor(saved["common"]["position"])
    return everything


@pytest.mark.slow
async def test_six_steps_equal_three_saved_loaded_elsewhere_and_three_more(llama: Path, tmp_path: Path) -> None:
    model = reference(llama)
    batches = [mixed_batch(model, step) for step in range(1, 7)]
    async with started(llama, tmp_path / "one") as trainer:
        for batch in batches[:3]:
            await trainer.step(batch)
        await trainer.save(tmp_path / "half")
        outputs = [await trainer.step(batch) for batch in batches[3:]]
        digest = await trainer.export(tmp_path / "straight")
        assert await trainer.digest() == digest
        straight = await state_of(trainer, tmp_path / "state-straight")
    async with started(llama, tmp_path / "two") as trainer:
        await trainer.load(tmp_path / "half")
        resumed_outputs = [await trainer.step(batch) for batch in batches[3:]]
        assert await trainer.export(tmp_path / "resumed") == digest
        resumed = await state_of(trainer, tmp_path / "state-resumed")
    assert straight.keys() == resumed.keys()
    for part in ("actor", "critic"):
        for kind in ("", "optimizer.state.exp_avg.", "optimizer.state.exp_avg_sq."):
            assert f"{part}.{kind}embedding.word_embeddings.weight" in straight
    assert (straight["actor.steps"], straight["critic.steps"]) == (5, 12)
    assert straight["position"] == 6
    assert [name for name in straight if not torch.equal(straight[name], resumed[name])] == []
    for one, other in zip(outputs, resumed_outputs, strict=True):
        untimed = [{k: v for k, v in o.metrics.items() if not k.startswith("time/")} for o in (one, other)]
        assert untimed[0] == untimed[1]
        assert one.moments == other.moments


async def test_export_is_a_model_that_transformers_loads(trainer: RemoteTrainer, llama: Path, tmp_path: Path) -> None:
    batch = mixed_batch(reference(llama))
    untouched = await trainer.export(tmp_path / "base")
    assert untouched == await trainer.export(tmp_path / "again")
    output = await trainer.step(batch)
    digest = await trainer.export(tmp_path / "trained")
    # The trainer's own log-probs of the trained weights, against those of the exported folder.
    trained = reference(tmp_path / "trained")
    again = await trainer.step(Batch(step=2, samples=tuple(rescored(trained, s) for s in batch.samples)))
    assert output.actor_trained
    assert digest != untouched
    assert again.metrics["train_rollout_logprob_abs_diff_max"] <= 1e-5
    source, base = (load_file(folder / "model.safetensors") for folder in (llama, tmp_path / "base"))
    assert source.keys() == base.keys()
    assert all(torch.equal(source[name], base[name]) and source[name].dtype == base[name].dtype for name in source)
    assert (tmp_path / "trained" / "tokenizer.json").read_text() == '{"kept": true}'
    assert digest == independent_digest(tmp_path / "trained" / "model.safetensors")


def rescored(model: Any, sample: Any) -> Any:
    """The sample as `model` would have recorded it."""
    from trainerkit import hf_logprobs

    with torch.no_grad():
        logp = hf_logprobs(model, list(sample.prompt_ids), list(sample.response_ids), sample.temperature).tolist()
    return dataclasses.replace(sample, rollout_logprobs=tuple(logp))


def independent_digest(file: Path) -> str:
    digest = hashlib.sha256()
    for name, tensor in sorted(load_file(file).items()):
        digest.update(f"{name} F32 {list(tensor.shape)}\n".encode() + tensor.numpy().tobytes())
    return digest.hexdigest()


async def test_refusals_leave_the_trainer_alive(trainer: RemoteTrainer, llama: Path, tmp_path: Path) -> None:
    await trainer.save(tmp_path / "state")
    (tmp_path / "state" / MARKER).unlink()
    with pytest.raises(TrainerError, match="not a complete trainer state"):
        await trainer.load(tmp_path / "state")
    await trainer.save(tmp_path / "state")
    (tmp_path / "state" / "critic").rename(tmp_path / "state" / "other")
    with pytest.raises(TrainerError, match="holds actor and other, this arm trains actor and critic"):
        await trainer.load(tmp_path / "state")
    await trainer.save(tmp_path / "short")
    largest = max((tmp_path / "short").rglob("*.distcp"), key=lambda file: file.stat().st_size)
    os.truncate(largest, largest.stat().st_size // 2)
    with pytest.raises(TrainerError, match="does not fit this trainer"):
        await trainer.load(tmp_path / "short")
    long = make_sample(reference(llama), 1, prompt=200, response=100)
    with pytest.raises(TrainerError, match="r1 has 300 tokens, the trainer takes 256"):
        await trainer.step(Batch(step=1, samples=(long,)))
    assert (await trainer.step(mixed_batch(reference(llama)))).step == 1


def contents(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


async def test_a_full_disk_keeps_the_last_state_and_the_trainer(
    trainer: RemoteTrainer, llama: Path, tmp_path: Path
) -> None:
    """A file-size limit on the rank stands in for the disk: the kernel refuses its writes half-way."""
    await trainer.save(tmp_path / "state")
    before = contents(tmp_path / "state")
    (pid,) = trainer.info.pids
    limits = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    await trainer.step(mixed_batch(reference(llama)))
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (100_000, limits[1]))
    for command, folder in ((trainer.save, tmp_path / "state"), (trainer.export, tmp_path / "weights")):
        with pytest.raises(TrainerError, match=f"{folder} could not be written") as error:
            await command(folder)
        assert "disk" in str(error.value.fix)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, limits)
    assert contents(tmp_path / "state") == before
    assert not (tmp_path / "weights").exists()
    assert not list(tmp_path.glob(".*.partial"))
    await trainer.save(tmp_path / "state")
    await trainer.export(tmp_path / "weights")
    assert (tmp_path / "weights" / MARKER).is_file()


async def test_a_killed_rank_is_noticed_at_once_and_leaves_nobody(llama: Path, tmp_path: Path) -> None:
    model = reference(llama)
    long = [make_sample(model, seed, prompt=100, response=150) for seed in range(40)]
    async with started(llama, tmp_path) as trainer:
        (rank,) = trainer.info.pids
        launcher = trainer.pid
        step = asyncio.create_task(trainer.step(Batch(step=7, samples=tuple(long))))
        await asyncio.sleep(0.3)
        assert not step.done()
        os.kill(rank, signal.SIGKILL)
        started_at = time.monotonic()
        with pytest.raises(ProcessDied, match="doing step 7"):
            await step
        assert time.monotonic() - started_at < 6
        assert not alive(rank)
        assert not alive(launcher)
        with pytest.raises(ProcessDied):
            await trainer.export(tmp_path / "never")


@pytest.mark.slow
async def test_a_killed_launcher_leaves_no_rank_behind(llama: Path, tmp_path: Path) -> None:
    async with started(llama, tmp_path) as trainer:
        (rank,) = trainer.info.pids
        os.kill(trainer.pid, signal.SIGKILL)
    deadline = time.monotonic() + 5
    while alive(rank) and time.monotonic() < deadline:
        await asyncio.sleep(0.05)
    assert not alive(rank)


async def test_a_model_that_cannot_be_trained_fails_the_start_with_its_reason(tmp_path: Path) -> None:
    folder = make_model(tmp_path / "m", mlp_bias=True)
    with pytest.raises(TrainerError, match="mlp_bias"):
        async with started(folder, tmp_path):
            pass


async def test_a_silent_start_names_the_log(llama: Path, tmp_path: Path) -> None:
    with pytest.raises(ProcessDied, match=r"still (starting|loading models) after 0.2 s"):
        async with started(llama, tmp_path, dataclasses.replace(QUICK, start_timeout_s=0.2)):
            pass
