"""One attempt at a problem, and what the run's seed fixes of it."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, replace
from random import Random
from typing import Any, Protocol

from saocli.types import Problem


class Grader(Protocol):
    """Scores one answer; a grader that fails says so instead of scoring 0."""

    async def grade(self, problem: Problem, text: str) -> Any: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Attempt:
    """One attempt at a problem, as the client saw it."""

    problem: str
    task: str  # the problem's family, or the problem itself
    number: int  # 1-based, of this problem
    of: int
    receipt: str
    text: str
    completion_tokens: int
    finish_reason: str
    at_s: float  # graded this long after the first attempt began, evaluations not counted
    score: float | None = None  # None: not graded, or grading failed
    error: str | None = None  # the grader's error
    state: str | None = None  # queued, recorded; after waiting: trained, dropped
    reason: str | None = None
    release_id: str | None = None
    step: int | None = None

    def settled(self, record: Any) -> Attempt:
        """The same attempt, standing where its receipt's `record` says."""
        return replace(
            self,
            state=record["state"],
            reason=record["reason"],
            release_id=record["release_id"],
            step=record["step"],
        )


def attempt_seed(seed: int, problem: str, number: int) -> int:
    """A sampling seed that depends on the run's seed and the attempt alone, so that a run can be repeated."""
    return _hashed(f"{seed}/{problem}/{number}") >> 1


def report_id(scenario: str, problem: str, number: int) -> str:
    """The id of the attempt's report in its run: an attempt that is reported again is the same report."""
    return f"drive-{hashlib.sha256(f'{scenario}/{problem}/{number}'.encode()).hexdigest()[:32]}"


def feedback_delay(median_s: float, sigma: float, *, seed: int, problem: str, number: int) -> float:
    """Seconds until the attempt's score is known: log-normal, m·exp(σ·z), drawn by the attempt's own generator."""
    return median_s * math.exp(sigma * Random(_hashed(f"{seed}/{problem}/{number}/feedback")).gauss(0.0, 1.0))


def _hashed(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big")
