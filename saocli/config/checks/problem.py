"""What a check finds."""

from __future__ import annotations

from typing import NamedTuple


class Problem(NamedTuple):
    """One thing that is wrong, and what to do."""

    message: str
    fix: str
