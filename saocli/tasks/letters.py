"""A task for the tiny random model: reply with eight characters of the kind that the prompt shows.

The score is the share of fitting characters, so that a model that is still random over its 260 tokens scores a
little rather than nothing: 0.20 for `letters`, 0.10 for `lower` and `upper`, 0.04 for `digits`, 0.02 for `vowels`.
`letters`, `lower` and `vowels` are nested, so one policy can solve all three and the easy ones lead to the hard one;
`lower`, `upper` and `digits` exclude each other, so solving them together takes reading the prompt.

`tasks.options: {then: digits}` changes the task while it is learnt: for the second half of the training problems, which
is a phase of its own, and for every held-out problem, characters of the family `then` score, whatever the prompt shows.
Prompts look as before, so the change is only seen in the scores. Such a problem's family is named `letters→digits`.
"""

from __future__ import annotations

import string

from saocli.config.tasks import TasksConfig
from saocli.errors import ConfigError
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
    """`count` problems, the families of `tasks.name` taking turns. ConfigError for an unknown family or option."""
    names = families(config, tuple(FAMILIES))
    then = _then(config)
    change = count // 2 if stream is Stream.TRAIN else 0
    randoms = {name: rng(seed, stream, name) for name in names}
    problems = []
    for index in range(count):
        name = names[index % len(names)]
        shown = "".join(randoms[name].choices(FAMILIES[name], k=SHOWN))
        instead = then if index >= change else None
        rewarded, family = (name, name) if instead is None else (instead, f"{name}→{instead}")
        problems.append(
            Problem(
                id=problem_id(stream, name, index),
                messages=({"role": "user", "content": shown},),
                answer=FAMILIES[rewarded],
                grader="letters",
                source={"family": family},
                phase=int(instead is not None),
            )
        )
    return problems


def _then(config: TasksConfig) -> str | None:
    """The family that scores after the change; None without one."""
    if unknown := sorted(set(config.options) - {"then"}):
        raise ConfigError(f"tasks.options has unknown keys: {', '.join(unknown)}", fix="letters knows one: then")
    then = config.options.get("then")
    if then is not None and then not in FAMILIES:
        raise ConfigError(f"tasks.options.then={then} names no letters family", fix=f"one of {', '.join(FAMILIES)}")
    return then
