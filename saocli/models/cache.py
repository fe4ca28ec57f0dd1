"""Where fetched and made models live, and how one gets there whole or not at all."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from saocli.errors import MachineError
from saocli.models.complete import fault

Progress = Callable[[str, float | None], None]  # (what is being done, fraction done or None when unknown)

MARKER = "sao-model.json"  # written last into a model that we made; says from what


def cache_root() -> Path:
    """`$SAO_CACHE`, else `$XDG_CACHE_HOME/sao`, else `~/.cache/sao`."""
    if own := os.environ.get("SAO_CACHE"):
        return Path(own).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base).expanduser() if base else Path.home() / ".cache") / "sao"


def models_root() -> Path:
    """The folder that holds one Hugging Face folder per made model."""
    return cache_root() / "models"


def made_from(folder: Path) -> dict[str, Any] | None:
    """What the marker in a model folder says it was made from; None when there is no readable marker."""
    try:
        origin = json.loads((folder / MARKER).read_text())
    except (OSError, ValueError):
        return None
    return origin if isinstance(origin, dict) else None


def build_once(folder: Path, origin: dict[str, Any], build: Callable[[Path], None], *, on_progress: Progress) -> Path:
    """Return `folder`, first making it by `build(empty_folder)` unless it is there, whole and made from `origin`.

    Only one process builds at a time, the others wait and find the result. An interrupted build leaves nothing that
    looks like a model: files are written next to it, the marker last, and a rename makes them appear at once.
    Raises MachineError when the disk refuses.
    """
    try:
        with _lock(folder, on_progress):
            if made_from(folder) == origin and fault(folder) is None:
                return folder
            _spare_what_is_not_ours(folder)
            rough = folder.with_name(f".{folder.name}.building")
            shutil.rmtree(rough, ignore_errors=True)
            rough.mkdir(parents=True)
            build(rough)
            (rough / MARKER).write_text(json.dumps(origin, indent=2, sort_keys=True) + "\n")
            _sync(rough)
            shutil.rmtree(folder, ignore_errors=True)
            rough.rename(folder)
    except OSError as error:
        raise MachineError(
            f"the model folder {folder} could not be written: {error}",
            fix="free space there, or point SAO_CACHE at a folder on another disk",
        ) from error
    return folder


def _spare_what_is_not_ours(folder: Path) -> None:
    """Refuse to replace a folder that has no marker of ours."""
    if folder.exists() and made_from(folder) is None:
        raise MachineError(
            f"{folder} is in the way of a model to be made: {fault(folder) or 'something else made it'}",
            fix="complete it, move it away, or name it as model.path",
        )


def _sync(folder: Path) -> None:
    """Have the disk hold every file before the rename that makes them count."""
    for path in folder.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())


@contextmanager
def _lock(folder: Path, on_progress: Progress) -> Iterator[None]:
    """Hold the folder's lock file; the kernel frees it however this process ends."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f".{folder.name}.lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            on_progress("waiting for another process that makes this model", None)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
