"""What a check says, and checks that cannot stop each other."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum

from saocli.errors import SaoError


class Mark(StrEnum):
    """How a check came out."""

    OK = "ok"
    MISSING = "missing"  # the run cannot start, or would not end well
    NOTE = "note"  # worth knowing, stops nothing; or there is nothing to check


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the doctor's."""

    mark: Mark
    what: str
    found: str
    needed: str = ""
    fix: str | None = None  # what to do about a miss


def verdict(what: str, holds: bool, *, found: str, needed: str = "", fix: str) -> Finding:
    """OK, or a miss with its fix."""
    return Finding(Mark.OK if holds else Mark.MISSING, what, found, needed, None if holds else fix)


def guarded(what: str, check: Callable[[], Iterable[Finding]]) -> list[Finding]:
    """What `check` finds. When it fails itself, that is a miss called `what`, and what it had found is lost."""
    try:
        return list(check())
    except SaoError as error:
        return [Finding(Mark.MISSING, what, error.message, fix=error.fix)]
    except ImportError as error:
        return [Finding(Mark.MISSING, what, str(error), fix="install sao with its dependencies: pip install saocli")]
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        return [Finding(Mark.MISSING, what, f"could not be checked: {error}", fix="see the message")]
