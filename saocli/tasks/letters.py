"""A task for the tiny random model: reply with eight characters of the kind that the prompt shows.

The score is the share of fitting characters, so that a model that is still random over its 260 tokens scores a
little rather than nothing: 0.20 for `letters`, 0.10 for `lower` and `upper`, 0.04 for `digits`, 0.02 for `vowels`.
`letters`, `lower` and `vowels` are nested, so one policy can solve all three and the easy ones lead to the hard one;
`lower`, `upper` and `digits` exclude each other, so solving them together takes reading the prompt.
"""

from __future__ import annotations

import string

from saocli.config.tasks import TasksConfig
from saocli.tasks.draw import Stream, families, problem_id, rng
from saocli.types import Problem

FAMILIES = {  # name -> the characters that fit
    "letters": string.ascii_letters,
    "lower": string.ascii_lowercase,
    "upper": string.ascii_uppercase,
    "digits": string.digits,
    "vowels": "aeiou",
}
SHOWN = 12  # characters in the prompt


def draw_letters(config: TasksConfig, *, seed: int, stream: Stream, count: int) -> list[Problem]:
    """`count` problems, the families of `tasks.name` taking turns. Raises ConfigError for an unknown family."""
    names = families(config, tuple(FAMILIES))
    randoms = {name: rng(seed, stream, name) for name in names}
    problems = []
    for index in range(count):
        name = names[index % len(names)]
        shown = "".join(randoms[name].choices(FAMILIES[name], k=SHOWN))
        problems.append(
            Problem(
                id=problem_id(stream, name, index),
                messages=({"role": "user", "content": shown},),
                answer=FAMILIES[name],
                grader="letters",
                source={"family": name},
            )
        )
    return problems
