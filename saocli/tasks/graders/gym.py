"""The scorers of reasoning-gym, on the last box of a reply."""

from __future__ import annotations

from reasoning_gym import get_score_answer_fn

from saocli.tasks.graders.boxed import last_boxed
from saocli.types import Problem


def grade_gym(problem: Problem, text: str) -> float:
    """The dataset's own score in [0, 1] of the last box; no box is a wrong answer. Raises what the scorer raises."""
    found = last_boxed(text)
    if found is None:
        return 0.0
    score_answer = get_score_answer_fn(problem.source["dataset"])
    return float(score_answer(answer=found.strip(), entry=problem.source["entry"]))
