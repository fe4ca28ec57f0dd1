"""The single checks: each compares one thing that was found with what is needed, and names the fix for a miss."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from saocli.config.engine import EngineKind
from saocli.config.estimate import Estimate
from saocli.config.gateway import GatewayConfig
from saocli.config.placement import gpus_needed
from saocli.config.run import RunConfig
from saocli.config.tasks import TaskSource
from saocli.config.trainer import Device
from saocli.doctor import versions
from saocli.doctor.finding import Finding, Mark, verdict
from saocli.doctor.interpreters import Interpreters
from saocli.doctor.machine import Machine
from saocli.doctor.words import place, size

SHM_NEEDED = 2**30  # NCCL's and SGLang's exchange between processes of one machine
FILES_BASE = 128  # libraries, logs, database
FILES_PER_ATTEMPT = 3  # of the service process: the client's end, the gateway's, the engine's


def gpu_finding(machine: Machine, config: RunConfig | None, plan: Estimate | None) -> Finding:
    """GPUs and their free memory, the freest for whom needs most."""
    gpus = sorted(machine.gpus, key=lambda gpu: gpu.free, reverse=True)
    found = ", ".join(f"{gpu.name} {size(gpu.free)} free of {size(gpu.total)}" for gpu in gpus) or "none"
    if config is None:
        return Finding(Mark.NOTE, "GPUs", found)
    count = gpus_needed(config)
    if count == 0:
        return Finding(Mark.NOTE, "GPUs", found, "not needed")
    needs = plan.gpu_bytes if plan is not None else (0,) * count
    instead = "machine=cpu takes the CPU profile; " if "cpu" in config.profiles else ""
    return verdict(
        "GPUs",
        len(gpus) >= count and all(gpu.free >= need for gpu, need in zip(gpus, needs, strict=False)),
        found=found,
        needed=f"{count}" + (f" with {', '.join(map(size, needs))} free" if plan is not None else ""),
        fix=f"{instead}nvidia-smi and CUDA_VISIBLE_DEVICES say which can be used, and who uses them; less memory: "
        "context_length=…, trainer.micro_batch_size=1",
    )


def memory_finding(machine: Machine, plan: Estimate | None) -> Finding:
    """RAM that is available now."""
    found = f"{size(machine.ram_available)} available of {size(machine.ram_total)}"
    if plan is None:
        return Finding(Mark.NOTE, "memory", found)
    return verdict(
        "memory",
        machine.ram_available >= plan.ram_bytes,
        found=found,
        needed=f"{size(plan.ram_bytes)} (estimate below)",
        fix="end other programs, or take less: context_length=…, trainer.micro_batch_size=1, engine.slots=…, "
        "trainer.dtype=bf16 engine.dtype=bf16, a smaller model=…",
    )


def disk_finding(runs: Path, plan: Estimate | None) -> Finding:
    """Free space where the run's releases go."""
    folder = existing(runs)
    free = shutil.disk_usage(folder).free
    if plan is None:
        return Finding(Mark.NOTE, "disk", f"{size(free)} free in {place(folder)}")
    return verdict(
        "disk",
        free >= plan.disk_bytes,
        found=f"{size(free)} free in {place(folder)}",
        needed=f"{size(plan.disk_bytes)} (estimate below)",
        fix="free space (old folders under runs/), run from a folder on another disk, or lower releases.keep_last",
    )


def shm_finding(machine: Machine, config: RunConfig | None) -> Finding:
    """/dev/shm, which containers often have 64 MiB of."""
    found = "none" if machine.shm is None else size(machine.shm)
    uses = config is not None and (
        config.engine.kind is EngineKind.SGLANG or (config.trainer.device is Device.GPU and config.trainer.ranks > 1)
    )
    if not uses:
        return Finding(Mark.NOTE, "shared memory", f"{found} in /dev/shm", "not needed" if config else "")
    return verdict(
        "shared memory",
        (machine.shm or 0) >= SHM_NEEDED,
        found=f"{found} in /dev/shm",
        needed=size(SHM_NEEDED),
        fix="start the container with --shm-size=1g or --ipc=host, or mount a larger /dev/shm",
    )


def files_finding(machine: Machine, config: RunConfig | None) -> Finding:
    """Files and sockets that the service may hold open."""
    attempts = 8
    if config is not None:
        attempts = max(config.engine.slots, config.tasks.concurrency, config.tasks.eval.concurrency)
    needed = FILES_BASE + FILES_PER_ATTEMPT * attempts
    return verdict(
        "open files",
        machine.open_files >= needed,
        found=f"{machine.open_files:,} (ulimit -n)",
        needed=f"{needed:,} for {attempts} attempts at once",
        fix=f"ulimit -n {max(needed, 4096)}"
        + ("" if machine.open_files_hard >= needed else " as an administrator: the hard limit is lower"),
    )


def port_finding(gateway: GatewayConfig) -> Finding:
    """Whether the gateway can listen. Raises MachineError when it cannot."""
    from saocli.gateway.server import bind

    listener = bind(gateway.host, gateway.port)
    port = listener.getsockname()[1]
    listener.close()
    chosen = f"any free one, e.g. {port}" if gateway.port == 0 else f"{gateway.host}:{port} is free"
    return Finding(Mark.OK, "port", chosen)


def runs_finding(runs: Path) -> Finding:
    """Whether a run directory can be made. Raises OSError when it cannot."""
    folder = existing(runs)
    try:
        with tempfile.TemporaryDirectory(prefix=".sao-doctor-", dir=folder) as probe:
            (Path(probe) / "file").write_bytes(b"x")
    except OSError as error:
        fix = "run from a folder that you may write to"
        return Finding(Mark.MISSING, "run directory", f"{place(folder)}: {error.strerror}", "writable", fix)
    return Finding(Mark.OK, "run directory", f"{place(folder)} can be written")


def tasks_finding(config: RunConfig, interpreters: Interpreters) -> Finding:
    """Whether the task set can be read."""
    tasks = config.tasks
    if tasks.source is TaskSource.REASONING_GYM:
        installed = interpreters.ask(sys.executable).packages["reasoning-gym"]
        tested, limits = versions.TESTED["reasoning-gym"], versions.accepted().get("reasoning-gym")
        return versions.judge("reasoning-gym", installed, tested, limits, label="tasks", where=sys.executable)
    if tasks.source is TaskSource.FILE:
        path = Path(tasks.path or "")
        return verdict("tasks", path.is_file(), found=str(path), needed="a readable file", fix="tasks.path=…")
    return Finding(Mark.OK, "tasks", tasks.source.value)


def context_finding(config: RunConfig, model: Mapping[str, Any]) -> Finding:
    """Whether the model takes as long a context."""
    longest = model.get("max_position_embeddings")
    return verdict(
        "context",
        longest is None or config.context_length <= longest,
        found=f"the model takes {longest:,} tokens" if longest else "the model names no limit",
        needed=f"{config.context_length:,} tokens",
        fix=f"context_length={longest}, or another model",
    )


def existing(path: Path) -> Path:
    """The folder, or the nearest one above it that is there."""
    path = path.absolute()
    return next(folder for folder in (path, *path.parents) if folder.is_dir())
