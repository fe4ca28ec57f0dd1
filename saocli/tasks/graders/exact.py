"""The whole reply is the answer."""

from __future__ import annotations

from saocli.types import Problem


def grade_exact(problem: Problem, text: str) -> float:
    """1 if the reply is the answer, up to white space at both ends, else 0."""
    return float(text.strip() == problem.answer.strip())
