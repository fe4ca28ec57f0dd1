"""What this machine has, read without torch: GPUs, memory, shared memory, limits."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from saocli.config.gpus import gpu_count

QUERY = ("nvidia-smi", "--query-gpu=index,uuid,name,memory.total,memory.free", "--format=csv,noheader,nounits")
SHM = Path("/dev/shm")
CGROUP = Path("/sys/fs/cgroup")
MIB = 2**20


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU that this process may use; memory in bytes."""

    name: str
    total: int
    free: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Machine:
    """Bytes everywhere."""

    gpus: tuple[Gpu, ...]
    ram_total: int
    ram_available: int
    shm: int | None  # size of /dev/shm; None without one
    open_files: int  # soft limit of this process
    open_files_hard: int


def look() -> Machine:
    """This machine, within the limits of its container."""
    total, available = _ram()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return Machine(
        gpus=_gpus(),
        ram_total=total,
        ram_available=available,
        shm=shutil.disk_usage(SHM).total if SHM.is_dir() else None,
        open_files=soft,
        open_files_hard=hard,
    )


def _gpus() -> tuple[Gpu, ...]:
    """As many as `gpu_count` says that may be used."""
    if gpu_count() == 0:
        return ()
    try:
        listed = subprocess.run(QUERY, capture_output=True, text=True, timeout=20, check=True).stdout
        rows = [[cell.strip() for cell in line.split(",")] for line in listed.splitlines() if line.strip()]
        named = {(index, uuid): Gpu(name, int(total) * MIB, int(free) * MIB) for index, uuid, name, total, free in rows}
    except (OSError, ValueError, subprocess.SubprocessError):
        return ()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return tuple(named.values())
    wanted = [name.strip() for name in visible.split(",")]
    return tuple(gpu for (index, uuid), gpu in named.items() if any(w == index or uuid.startswith(w) for w in wanted))


def _ram() -> tuple[int, int]:
    """Total and available, the container's where it has a limit of its own."""
    page = os.sysconf("SC_PAGE_SIZE")
    total = page * os.sysconf("SC_PHYS_PAGES")
    try:
        lines = (line.split() for line in Path("/proc/meminfo").read_text().splitlines())
        available = next(int(words[1]) * 1024 for words in lines if words[0] == "MemAvailable:")
    except (OSError, StopIteration):
        available = page * os.sysconf("SC_AVPHYS_PAGES")
    try:
        limit = int((CGROUP / "memory.max").read_text())  # "max" without a limit: ValueError
        used = int((CGROUP / "memory.current").read_text())
        stat = dict(line.split() for line in (CGROUP / "memory.stat").read_text().splitlines())
        # Pages of files that were read once count as used, and are given back when needed.
        free = limit - used + int(stat.get("inactive_file", 0))
    except (OSError, ValueError):
        return total, available
    return min(total, limit), max(0, min(available, free))
