"""Asking a Python what it is and what it has installed, by starting it; nothing heavy is imported there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from saocli.errors import MachineError

# Old enough grammar for any Python 3, so that one that is too old still says so.
ASK = """
import json, platform, sys
from importlib import metadata
def version(name):
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
print(json.dumps({"python": platform.python_version(), "packages": {name: version(name) for name in sys.argv[1:]}}))
"""
TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Interpreter:
    """A Python that starts."""

    path: str
    python: str  # its version
    packages: Mapping[str, str | None]  # installed versions


class Interpreters:
    """Asks each interpreter once, about the same packages."""

    def __init__(self, packages: Sequence[str]) -> None:
        self._packages = packages
        self._asked: dict[str, Interpreter] = {}

    def ask(self, path: str) -> Interpreter:
        """Start it and have it look. Raises MachineError when it does not exist or does not start."""
        if path not in self._asked:
            self._asked[path] = _start(path, self._packages)
        return self._asked[path]


def _start(path: str, packages: Sequence[str]) -> Interpreter:
    env = dict(os.environ)
    if path != sys.executable:
        env.pop("PYTHONPATH", None)  # what is on our path is not in its environment
    try:
        done = subprocess.run(
            [path, "-c", ASK, *packages], capture_output=True, text=True, timeout=TIMEOUT_S, check=True, env=env
        )
        answer = json.loads(done.stdout)
    except subprocess.CalledProcessError as error:
        last = (error.stderr.strip().splitlines() or [f"status {error.returncode}"])[-1]
        raise MachineError(f"{path} does not start: {last}", fix="repair that environment, or name another") from error
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise MachineError(f"{path}: {reason}", fix="name an interpreter that exists") from error
    return Interpreter(path, answer["python"], answer["packages"])
