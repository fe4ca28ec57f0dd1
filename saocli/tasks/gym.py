"""Problems of a reasoning-gym dataset, scored by the dataset's own scorer."""

from __future__ import annotations

import difflib

from saocli.config.tasks import TasksConfig
from saocli.errors import ConfigError, MachineError
from saocli.tasks.boxhint import with_hint
from saocli.tasks.draw import Stream, problem_id, stream_seed
from saocli.types import Problem


def draw_gym(config: TasksConfig, *, seed: int, stream: Stream, count: int) -> list[Problem]:
    """`count` problems of the dataset `tasks.name`, made with `tasks.options`.

    Raises MachineError when reasoning-gym is not installed, ConfigError when it knows no such dataset or option.
    """
    try:
        import reasoning_gym
        from reasoning_gym.factory import DATASETS
    except ImportError as error:
        raise MachineError(
            f"tasks.source=reasoning_gym needs the package reasoning-gym: {error}", fix="pip install 'saocli[tasks]'"
        ) from error
    if config.name not in DATASETS:
        close = difflib.get_close_matches(str(config.name), DATASETS, n=5, cutoff=0.4)
        raise ConfigError(
            f"tasks.name={config.name} names no reasoning-gym dataset", fix=f"close ones: {', '.join(close) or 'none'}"
        )
    name = str(config.name)
    try:
        dataset = reasoning_gym.create_dataset(
            name, size=count, seed=stream_seed(seed, stream, name) % 2**31, **config.options
        )
    except (TypeError, ValueError, AssertionError) as error:
        raise ConfigError(f"tasks.options does not fit reasoning-gym's {name}: {error}") from error
    return [
        Problem(
            id=problem_id(stream, name, index),
            messages=({"role": "user", "content": with_hint(entry["question"])},),
            answer=str(entry["answer"]),
            grader="reasoning_gym",
            source={"dataset": name, "entry": entry},
        )
        for index, entry in enumerate(dataset)
    ]
