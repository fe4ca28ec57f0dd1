"""Where step records go."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol


class Sink(Protocol):
    """Takes one record per commit."""

    def write(self, record: Mapping[str, Any]) -> None: ...

    def close(self) -> None: ...


class JsonlSink:
    """One JSON object a line, flushed at once; NaN and ±inf are null."""

    def __init__(self, path: Path) -> None:
        _drop_torn_line(path)
        self._file = path.open("a", encoding="utf-8")

    def write(self, record: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(_finite(record), ensure_ascii=False, allow_nan=False) + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def rewrite(path: Path, records: Iterable[Mapping[str, Any]]) -> None:
    """Replace a JSONL file by these records in one step: who is killed meanwhile leaves the old file."""
    fresh = path.with_name(f".{path.name}.fresh")
    fresh.unlink(missing_ok=True)
    sink = JsonlSink(fresh)
    for record in records:
        sink.write(record)
    sink.close()
    fresh.replace(path)


def read_records(path: Path) -> Iterator[dict[str, Any]]:
    """The finished lines of a JSONL file, oldest first; nothing when there is no file."""
    if not path.exists():
        return
    with path.open(encoding="utf-8") as file:
        for line in file:
            if line.endswith("\n"):
                yield json.loads(line)


def _drop_torn_line(path: Path) -> None:
    """Cut what a killed process left after the last newline; the next record would be glued to it."""
    if path.exists():
        data = path.read_bytes()
        if not data.endswith(b"\n"):
            os.truncate(path, data.rfind(b"\n") + 1)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
