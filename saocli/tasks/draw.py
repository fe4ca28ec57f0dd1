"""Random streams of procedural sources: training and evaluation never share one."""

from __future__ import annotations

import hashlib
from enum import StrEnum
from random import Random

from saocli.config.tasks import TasksConfig
from saocli.errors import ConfigError


class Stream(StrEnum):
    """What a draw is for; part of its seed and of the problems' ids."""

    TRAIN = "train"
    EVAL = "eval"


def stream_seed(seed: int, stream: Stream, label: str) -> int:
    """A 63-bit seed of its own for each (seed, stream, label)."""
    digest = hashlib.sha256(f"{seed}/{stream}/{label}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def rng(seed: int, stream: Stream, label: str) -> Random:
    """The random generator of a stream."""
    return Random(stream_seed(seed, stream, label))


def problem_id(stream: Stream, family: str, index: int) -> str:
    """`add1-0007`, or `eval-add1-0007` for a held-out problem."""
    return f"{'eval-' if stream is Stream.EVAL else ''}{family}-{index:04d}"


def families(config: TasksConfig, known: tuple[str, ...]) -> list[str]:
    """The comma-separated names in `tasks.name`. Raises ConfigError for a name that is not known."""
    names = [name.strip() for name in (config.name or "").split(",") if name.strip()]
    wrong = [name for name in names if name not in known]
    if wrong or not names:
        raise ConfigError(
            f"tasks.name={config.name} names no {config.source} family: {', '.join(wrong) or 'it is empty'}",
            fix=f"one or more, separated by commas, of {', '.join(known)}",
        )
    return names
