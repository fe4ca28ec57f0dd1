"""What the processes of a run really occupy, at the full context length: their peaks by phase, read from /proc."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path
from uuid import uuid4

import torch

from saocli.config.arm import ArmConfig
from saocli.config.run import RunConfig
from saocli.engine.base import GenerateRequest
from saocli.engine.embedded.launch import start_embedded
from saocli.trainer.remote import RemoteTrainer
from saocli.types import Batch, Sample, Sampling

# A band that keeps every token: what is measured is memory, not learning.
WIDE = {"eps_low": 0.99999999, "eps_high": 1e9}


def full_length_rollouts(count: int, *, prompt: int, context: int, vocab: int) -> tuple[Sample, ...]:
    """Random rollouts of `context` tokens, all but `prompt` of them sampled."""
    ids = torch.randint(0, vocab, (count, context), generator=torch.Generator().manual_seed(0)).tolist()
    return tuple(
        Sample(
            receipt=f"r{i}",
            prompt_ids=tuple(row[:prompt]),
            response_ids=tuple(row[prompt:]),
            action_mask=(1,) * (context - prompt),
            rollout_logprobs=(-12.0,) * (context - prompt),
            score=float(i % 2 == 0),
            temperature=1.0,
            group=f"g{i}",
            versions=("v0",),
            truncated=False,
            reported_at=0.0,
        )
        for i, row in enumerate(ids)
    )


def peak_bytes(pids: tuple[int, ...]) -> int:
    """Peak resident memory of the processes together, since the last `forget_peaks`."""
    return sum(_status(pid)["VmHWM"] for pid in pids)


def resident_bytes(pids: tuple[int, ...]) -> int:
    """Resident memory that no file backs, of the processes together, now."""
    return sum(_status(pid)["RssAnon"] for pid in pids)


def forget_peaks(pids: tuple[int, ...]) -> None:
    """Start the peaks anew."""
    for pid in pids:
        Path(f"/proc/{pid}/clear_refs").write_text("5")


def _status(pid: int) -> dict[str, int]:
    """The kB lines of /proc/PID/status in bytes."""
    lines = (line.split() for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return {words[0].rstrip(":"): int(words[1]) * 1024 for words in lines if words[-1] == "kB"}


async def trainer_peaks(config: RunConfig, folder: Path, *, vocab: int, tmp: Path) -> dict[str, int]:
    """Peak resident bytes of the trainer's ranks in each phase of its life; `disk/…`: bytes of what it wrote."""
    trainer = await RemoteTrainer.start(
        config=dataclasses.replace(config.trainer, critic_warmup_steps=0),
        arm=ArmConfig(name=config.arm.name, **WIDE),
        model_folder=folder,
        context_length=config.context_length,
        seed=0,
        log=tmp / "trainer.log",
    )
    pids = trainer.info.pids
    peaks = {"start": trainer.info.peak_rss_bytes}
    try:
        rollouts = full_length_rollouts(config.batch_size, prompt=8, context=config.context_length, vocab=vocab)
        for step in (1, 2):
            forget_peaks(pids)
            output = await trainer.step(Batch(step=step, samples=rollouts))
            assert output.actor_trained
            peaks[f"step {step}"] = peak_bytes(pids)
        peaks["at rest (anonymous)"] = resident_bytes(pids)
        forget_peaks(pids)
        await trainer.export(tmp / "weights")
        peaks["export"] = peak_bytes(pids)
        forget_peaks(pids)
        await trainer.save(tmp / "state")
        peaks["save"] = peak_bytes(pids)
    finally:
        await trainer.close()
    sizes = {f"disk/{name}": folder_bytes(tmp / name) for name in ("weights", "state")}
    return peaks | sizes


def folder_bytes(folder: Path) -> int:
    """Bytes of all files below."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


async def engine_peaks(config: RunConfig, folder: Path, *, vocab: int, tmp: Path) -> dict[str, int]:
    """Resident bytes of the embedded engine: its peak while loading, and anonymous with every slot full."""
    engine = await start_embedded(
        config.engine,
        model_folder=folder,
        version="v0",
        context_length=config.context_length,
        seed=0,
        log=tmp / "engine.log",
    )
    assert engine.child is not None
    pids = (engine.child.pid,)
    peaks = {"start": peak_bytes(pids), "started (anonymous)": resident_bytes(pids)}
    forget_peaks(pids)
    prompt = tuple(range(1, 9)) * ((config.context_length - 16) // 8)

    async def one() -> None:
        sampling = Sampling(max_new_tokens=config.context_length - len(prompt))
        async for _ in engine.generate(GenerateRequest(rid=str(uuid4()), prompt_ids=prompt, sampling=sampling)):
            pass

    try:
        await asyncio.gather(*(one() for _ in range(config.engine.slots)))
        peaks["full"] = peak_bytes(pids)
        peaks["full (anonymous)"] = resident_bytes(pids)
    finally:
        await engine.close()
    return peaks
