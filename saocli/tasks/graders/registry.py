"""Graders by name. Loading one imports what it needs, so only worker processes do."""

from __future__ import annotations

from collections.abc import Callable

from saocli.errors import ConfigError
from saocli.types import Problem

GraderFn = Callable[[Problem, str], float]

NAMES = ("boxed", "math", "exact", "letters", "reasoning_gym")


def check(name: str, where: str) -> str:
    """`name` if there is such a grader; else ConfigError that names the key `where`."""
    if name not in NAMES:
        raise ConfigError(f"{where} names no grader: {name!r}", fix=f"one of {', '.join(NAMES)}")
    return name


def load(name: str) -> GraderFn:
    """The grader called `name`. Raises ImportError when its library is not installed."""
    match name:
        case "boxed":
            from saocli.tasks.graders.boxed import grade_boxed as grade
        case "math":
            from saocli.tasks.graders.math import grade_math as grade
        case "exact":
            from saocli.tasks.graders.exact import grade_exact as grade
        case "letters":
            from saocli.tasks.graders.letters import grade_letters as grade
        case "reasoning_gym":
            from saocli.tasks.graders.gym import grade_gym as grade
        case _:
            raise KeyError(name)
    return grade
