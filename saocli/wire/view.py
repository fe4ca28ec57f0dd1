"""Who is told what happens in a run."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol

from saocli.driver.drive import DriveView
from saocli.types import Release


class PhaseView(Protocol):
    """One line of the header in the making."""

    what: str
    detail: str

    def progress(self, text: str) -> None: ...


class View(DriveView, Protocol):
    """Who is told what happens."""

    @property
    def live(self) -> bool:
        """Whether anyone sees what `status` says."""
        ...

    def phase(self, name: str, what: str) -> AbstractContextManager[PhaseView]: ...
    def step(self, release: Release, record: Mapping[str, Any]) -> None: ...
    def status(self, text: str) -> None: ...
    def say(self, text: str, style: str = "") -> None: ...
