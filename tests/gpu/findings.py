"""What a check found, one JSON line each, so that one failure hides nothing of the rest."""

from __future__ import annotations

import json
import math
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


class Findings:
    """Appends to a file and prints; a line with `ok` false is a failure, one without `ok` a measurement."""

    def __init__(self, file: Path, *, group: str) -> None:
        self._file = file
        self._group = group

    def add(self, check: str, *, ok: bool | None = None, **numbers: Any) -> None:
        line = {"group": self._group, "check": check} | ({} if ok is None else {"ok": bool(ok)}) | numbers
        text = json.dumps({key: _short(value) for key, value in line.items()}, default=str)
        with self._file.open("a") as file:
            file.write(text + "\n")
        print(text, flush=True)

    @contextmanager
    def checking(self, check: str) -> Iterator[None]:
        """Whatever the block raises becomes a failed line."""
        started = time.perf_counter()
        try:
            yield
        except Exception as error:  # noqa: BLE001 (a proof must go on to its next check)
            traceback.print_exc()
            where = traceback.extract_tb(error.__traceback__)[-1]
            text = f"{type(error).__name__}: {error}"[:600]
            self.add(check, ok=False, error=text, at=f"{where.filename}:{where.lineno}")
        finally:
            print(f"# {self._group}: {check}: {time.perf_counter() - started:.1f} s", flush=True)


def read(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def _short(value: Any) -> Any:
    """Six digits of a float say enough; JSON has no NaN."""
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else str(value)
    if isinstance(value, list | tuple):
        return [_short(item) for item in value]
    return value
