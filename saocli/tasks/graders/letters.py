"""The graded score of the letters task."""

from __future__ import annotations

from saocli.types import Problem

REPLY_LENGTH = 8  # characters that count


def grade_letters(problem: Problem, text: str) -> float:
    """The share of the first eight characters that are among the answer's; a shorter reply lacks the rest."""
    allowed = set(problem.answer)
    return sum(char in allowed for char in text[:REPLY_LENGTH]) / REPLY_LENGTH
