"""Problems written down one by one: in the conf itself or in a file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from saocli.config.tasks import TasksConfig
from saocli.errors import ConfigError
from saocli.tasks.boxhint import with_hint
from saocli.tasks.graders.registry import check
from saocli.types import Problem

BOXING = ("boxed", "math", "reasoning_gym")  # graders that look for a box


def inline_problems(config: TasksConfig) -> list[Problem]:
    """The problems in `tasks.items`, each `{id, prompt, answer, grader?}`. Raises ConfigError for one that is not."""
    return listed([(f"tasks.items[{index}]", item) for index, item in enumerate(config.items)], config.grader)


def listed(items: list[tuple[str, Any]], default_grader: str) -> list[Problem]:
    """Problems from (where it stands, item) pairs, ids unique. A box is asked for where the grader needs one."""
    check(default_grader, "tasks.grader")
    problems: dict[str, Problem] = {}
    for where, item in items:
        problem = _problem(where, item, default_grader)
        if problem.id in problems:
            raise ConfigError(f"{where} has the id {problem.id!r} of an earlier problem", fix="give each its own id")
        problems[problem.id] = problem
    return list(problems.values())


def _problem(where: str, item: Any, default_grader: str) -> Problem:
    if not isinstance(item, Mapping):
        raise ConfigError(f"{where} is not a mapping with id, prompt and answer: {item!r}")
    if missing := [key for key in ("id", "prompt", "answer") if item.get(key) in (None, "")]:
        raise ConfigError(f"{where} has no {' and no '.join(missing)}", fix="a problem needs id, prompt and answer")
    if unknown := sorted(set(item) - {"id", "prompt", "answer", "grader"}):
        raise ConfigError(f"{where} has unknown keys: {', '.join(map(str, unknown))}")
    grader = check(item.get("grader") or default_grader, f"{where}.grader")
    prompt = str(item["prompt"]).strip()
    return Problem(
        id=str(item["id"]),
        messages=({"role": "user", "content": with_hint(prompt) if grader in BOXING else prompt},),
        answer=str(item["answer"]),
        grader=grader,
    )
