"""The run directory: where everything of a run lies, and which runs live."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from saocli.errors import StoreError

if TYPE_CHECKING:
    from saocli.store.releases import Releases

LATEST = "latest"


@dataclass(frozen=True)
class RunDirectory:
    """runs/<name>-<mmdd-HHMM>/ and the names in it."""

    path: Path

    @property
    def records_db(self) -> Path:
        return self.path / "records.db"

    @property
    def releases(self) -> Path:
        """Holds one folder per kept step."""
        return self.path / "releases"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def metrics_jsonl(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def attempts_jsonl(self) -> Path:
        """One line per finished attempt of a driven run."""
        return self.path / "attempts.jsonl"

    @property
    def evaluations_jsonl(self) -> Path:
        return self.path / "evaluations.jsonl"

    @property
    def result_json(self) -> Path:
        """Written last: there once a driven run has ended as it should."""
        return self.path / "result.json"

    @property
    def config_yaml(self) -> Path:
        return self.path / "config.yaml"

    @property
    def overrides(self) -> Path:
        return self.path / "overrides"

    @property
    def environment_json(self) -> Path:
        return self.path / "environment.json"

    @property
    def token_file(self) -> Path:
        return self.path / "token"

    @property
    def service_json(self) -> Path:
        """There while the run's service is healthy."""
        return self.path / "service.json"

    @classmethod
    def create(cls, root: Path, name: str) -> RunDirectory:
        """Make root/<name>-<mmdd-HHMM>[-n] with its folders and point root/latest to it. Raises StoreError."""
        run = cls.reserve(root, name)
        run.make()
        return run

    @classmethod
    def reserve(cls, root: Path, name: str) -> RunDirectory:
        """The same, but empty: for what is no run itself, as a comparison of several. Raises StoreError."""
        stem = f"{name}-{time.strftime('%m%d-%H%M')}"
        with _explained(root):
            root.mkdir(parents=True, exist_ok=True)
            number = 1
            while True:
                run = cls(root / (stem if number == 1 else f"{stem}-{number}"))
                with contextlib.suppress(FileExistsError):
                    run.path.mkdir()
                    break
                number += 1
            _point(root / LATEST, run.path.name)
        return run

    def make(self) -> None:
        """Make the folders of a fresh run. Raises StoreError."""
        with _explained(self.path):
            self.releases.mkdir(parents=True)
            self.logs.mkdir()

    @classmethod
    def open(cls, path: Path) -> RunDirectory:
        """An existing run. Raises StoreError when it is none."""
        run = cls(path.resolve())
        if not run.config_yaml.is_file() and not run.records_db.is_file():
            raise StoreError(f"{path} is not a run directory", fix="name a folder under runs/, or runs/latest")
        return run

    def write_config(self, yaml_text: str, overrides: Sequence[str]) -> None:
        """The resolved configuration and the overrides that led to it, one a line."""
        self._write(self.config_yaml, yaml_text)
        self._write(self.overrides, "".join(f"{override}\n" for override in overrides))

    def write_environment(self, environment: Mapping[str, Any]) -> None:
        """Versions, revision and machine."""
        self._write(self.environment_json, json.dumps(environment, indent=2) + "\n")

    def write_token(self, token: str) -> None:
        """The clients' token, readable by this user alone."""
        self._write(self.token_file, token + "\n", mode=0o600)

    def token(self) -> str:
        """What `write_token` wrote. Raises StoreError."""
        with _explained(self.token_file):
            return self.token_file.read_text().strip()

    def write_service(self, *, url: str, pid: int, scenario: str, started_at: float) -> None:
        """Say that this run serves here."""
        service = {"url": url, "pid": pid, "scenario": scenario, "started_at": started_at}
        self._write(self.service_json, json.dumps(service) + "\n")

    def service(self) -> dict[str, Any]:
        """What `write_service` wrote: url, pid, scenario, started_at. Raises StoreError when the run does not serve."""
        with _explained(self.service_json):
            service: dict[str, Any] = json.loads(self.service_json.read_text())
            return service

    def remove_service(self) -> None:
        """Say that it no longer serves."""
        with _explained(self.service_json):
            self.service_json.unlink(missing_ok=True)

    def attempts(self) -> list[dict[str, Any]]:
        """The finished attempts so far, in the order in which they ended."""
        return _lines(self.attempts_jsonl)

    def evaluations(self) -> list[dict[str, Any]]:
        """The held-out evaluations so far."""
        return _lines(self.evaluations_jsonl)

    def write_result(self, result: Mapping[str, Any]) -> None:
        """Say that the driven run is over, and how it ended."""
        self._write(self.result_json, json.dumps(result, indent=2, allow_nan=False) + "\n")

    def result(self) -> dict[str, Any] | None:
        """What `write_result` wrote; None while the run is not over."""
        if not self.result_json.exists():
            return None
        with _explained(self.result_json):
            result: dict[str, Any] = json.loads(self.result_json.read_text())
            return result

    def releases_reader(self) -> Releases:
        """The version chain, for reading, also while the run's own process writes it. Raises StoreError."""
        from saocli.store.database import Database
        from saocli.store.releases import Releases

        return Releases(Database(self.records_db, readonly=True))

    def scenario(self) -> str:
        """The scenario that this run trains. Raises StoreError before its first release."""
        scenario = self.releases_reader().scenario()
        if scenario is None:
            raise StoreError(f"{self.path} has no release yet", fix="wait until `sao serve` is healthy")
        return scenario

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the run for this process; the kernel lets go when the process ends. Raises StoreError if it is held."""
        with _explained(self.path):
            fd = os.open(self.path / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            with _explained(self.path):
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield
        finally:
            os.close(fd)

    def _write(self, path: Path, text: str, mode: int = 0o644) -> None:
        """Replace a file so that a reader sees the old or the new one, never half of it."""
        partial = path.with_name(f".{path.name}.{os.getpid()}")
        with _explained(path):
            partial.unlink(missing_ok=True)
            with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w") as file:
                file.write(text)
            partial.replace(path)


def live_runs(root: Path) -> list[RunDirectory]:
    """The runs under `root` whose service process lives, newest first."""
    live: list[tuple[float, RunDirectory]] = []
    for path in root.glob("*/service.json"):
        run = RunDirectory(path.parent)
        # A file that is not ours, or that goes away while it is read, is no live run.
        with contextlib.suppress(StoreError, ValueError, KeyError, TypeError):
            service = run.service()
            if not run.path.is_symlink() and _lives(service["pid"]):
                live.append((service["started_at"], run))
    return [run for _, run in sorted(live, key=lambda item: item[0], reverse=True)]


def _lines(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a JSONL file, [] without one: a killed process may have left half a line at the end."""
    if not path.exists():
        return []
    with _explained(path), path.open(encoding="utf-8") as file:
        return [json.loads(line) for line in file if line.endswith("\n")]


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _point(link: Path, target: str) -> None:
    """Make the symlink in one step, so that it never dangles."""
    fresh = link.with_name(f".{link.name}.{os.getpid()}")
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(target)
    fresh.replace(link)


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """The system's errors as StoreError with the path and a way out."""
    try:
        yield
    except BlockingIOError as error:
        raise StoreError(
            f"{path} is in use by another sao",
            fix="`sao status` shows it; stop it with `sao stop`, or name another run",
        ) from error
    except OSError as error:
        raise StoreError(
            f"{path}: {error.strerror}", fix="check that the folder is writable and the disk has space"
        ) from error
