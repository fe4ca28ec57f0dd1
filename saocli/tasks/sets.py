"""From a tasks conf to its problems."""

from __future__ import annotations

from collections.abc import Callable

from saocli.config.tasks import TasksConfig, TaskSource
from saocli.errors import ConfigError
from saocli.tasks.arithmetic import draw_arithmetic
from saocli.tasks.draw import Stream
from saocli.tasks.file import file_problems
from saocli.tasks.gym import draw_gym
from saocli.tasks.letters import draw_letters
from saocli.tasks.listed import inline_problems
from saocli.types import Problem

_FIXED: dict[TaskSource, Callable[[TasksConfig], list[Problem]]] = {
    TaskSource.INLINE: inline_problems,
    TaskSource.FILE: file_problems,
}
_DRAWN: dict[TaskSource, Callable[..., list[Problem]]] = {
    TaskSource.ARITHMETIC: draw_arithmetic,
    TaskSource.LETTERS: draw_letters,
    TaskSource.REASONING_GYM: draw_gym,
}


def is_procedural(config: TasksConfig) -> bool:
    """Whether problems are drawn, as many as asked for, rather than read."""
    return config.source in _DRAWN


def load_tasks(config: TasksConfig, *, seed: int) -> list[Problem]:
    """The problems to train on, in order, each with an id of its own.

    A written-down set gives its first `tasks.count` problems (0: all), a procedural source draws that many from `seed`.
    Raises ConfigError that names the key, file or column at fault, MachineError for a package that is not installed.
    """
    if read := _FIXED.get(config.source):
        problems = read(config)
        if not problems:
            raise ConfigError(
                f"tasks.source={config.source} has no problems", fix="list some in tasks.items or tasks.path"
            )
        if config.count > len(problems):
            raise ConfigError(
                f"tasks.count={config.count}, but tasks.source={config.source} has {len(problems)} problems"
            )
        return problems[: config.count or None]
    if config.count < 1:
        raise ConfigError(f"tasks.count={config.count}: tasks.source={config.source} must be told how many to draw")
    return _DRAWN[config.source](config, seed=seed, stream=Stream.TRAIN, count=config.count)


def eval_problems(config: TasksConfig, *, seed: int, count: int) -> list[Problem]:
    """`count` fresh problems of a procedural source, drawn from a random stream that training never touches.

    Raises ConfigError for a written-down set: it has nothing held out.
    """
    draw = _DRAWN.get(config.source)
    if draw is None:
        raise ConfigError(
            f"tasks.eval.samples={count}: tasks.source={config.source} has no held-out problems",
            fix="evaluate on a procedural source, or set tasks.eval.samples=0",
        )
    return draw(config, seed=seed, stream=Stream.EVAL, count=count)
