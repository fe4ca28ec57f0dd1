"""What grading one reply gives."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Grade:
    """A score, or the reason why there is none; never both. A grader that failed has not seen a wrong answer."""

    score: float | None = None
    error: str | None = None

    def __post_init__(self) -> None:
        if (self.score is None) == (self.error is None):
            raise ValueError("a grade is either a score or an error")
