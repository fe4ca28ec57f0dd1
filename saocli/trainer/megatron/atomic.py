"""Folders that are either complete or not there, written by all ranks together."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import torch
from torch.distributed.checkpoint.api import CheckpointException

from saocli.errors import TrainerError
from saocli.stored import MARKER

FULL_BYTES = 2**20  # a disk with less left is taken to be what stopped a write


def is_writer() -> bool:
    """Whether this rank makes folders, renames them and answers: the first one."""
    return torch.distributed.get_rank() == 0


@contextlib.contextmanager
def replacing(folder: Path) -> Iterator[Path]:
    """Fill the folder that is yielded, its MARKER last; it then becomes `folder`, in one rename.

    Collective. On any failure nothing is left behind, an earlier `folder` stays, and every rank raises TrainerError.
    """
    rough, old = (folder.with_name(f".{folder.name}.{suffix}") for suffix in ("partial", "old"))
    with _agreeing(folder):
        if is_writer():
            shutil.rmtree(rough, ignore_errors=True)
            rough.mkdir(parents=True)
    try:
        with _agreeing(folder):
            yield rough
        with _agreeing(folder):
            if is_writer():
                _sync(rough / MARKER)
                _sync(rough)
                if folder.exists():
                    folder.rename(old)
                rough.rename(folder)
                _sync(folder.parent)
                shutil.rmtree(old, ignore_errors=True)
    finally:
        if is_writer():
            shutil.rmtree(rough, ignore_errors=True)


@contextlib.contextmanager
def _agreeing(folder: Path) -> Iterator[None]:
    """Whether the block could write is agreed on by all ranks at its end: it fails on all or on none."""
    problem: BaseException | None = None
    try:
        yield
    # A failed write inside torch surfaces as RuntimeError, one of a checkpoint as CheckpointException.
    except (OSError, RuntimeError, CheckpointException) as error:
        problem = error
    failed = torch.tensor([problem is not None], dtype=torch.int, device=torch.cuda.current_device())
    torch.distributed.all_reduce(failed, op=torch.distributed.ReduceOp.MAX)
    if failed.item():
        raise TrainerError(
            f"{folder} could not be written: {_cause(problem, folder)}",
            fix="free disk space or check the folder's permissions; the weights in memory are as they were",
        ) from problem


def _cause(problem: BaseException | None, folder: Path) -> str:
    """The first line of what went wrong. torch does not say that the disk is full, so that is looked at."""
    if problem is None:
        return "another rank failed"
    home = next(parent for parent in folder.parents if parent.exists())
    full = not isinstance(problem, OSError) and shutil.disk_usage(home).free < FULL_BYTES
    return os.strerror(errno.ENOSPC) if full else str(problem).splitlines()[0]


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
