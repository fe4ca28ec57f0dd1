"""One-step arithmetic at the level of a small chat model: three solved turns, then the question."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from saocli.config.tasks import TasksConfig
from saocli.tasks.draw import Stream, families, problem_id, rng
from saocli.tasks.graders.registry import check
from saocli.types import Message, Problem

# Zero-shot the model never boxes its answer; these turns show the step and the box.
SOLVED = (
    ("What is 2 + 1?", "2 + 1 = 3. The answer is \\boxed{3}."),
    ("Which number is larger, 31 or 57?", "57 is larger than 31. The answer is \\boxed{57}."),
    ("What is 10 - 4?", "10 - 4 = 6. The answer is \\boxed{6}."),
)
THINGS = ("pencils", "apples", "eggs", "books", "cups", "stamps")


def _add1(random: Random) -> tuple[str, int]:
    a, b = random.randint(1, 9), random.randint(1, 9)
    return f"What is {a} + {b}?", a + b


def _mul1(random: Random) -> tuple[str, int]:
    a, b = random.randint(1, 9), random.randint(1, 9)
    return f"What is {a} * {b}?", a * b


def _sub1(random: Random) -> tuple[str, int]:
    b, a = sorted((random.randint(1, 9), random.randint(1, 9)))
    return f"What is {a} - {b}?", a - b


def _larger(random: Random) -> tuple[str, int]:
    a, b = random.sample(range(10, 100), 2)
    return f"Which number is larger, {a} or {b}?", max(a, b)


def _word(random: Random) -> tuple[str, int]:
    boxes, each, things = random.randint(2, 5), random.randint(2, 5), random.choice(THINGS)
    return f"{boxes} boxes with {each} {things} each: how many {things} is that?", boxes * each


FAMILIES: dict[str, Callable[[Random], tuple[str, int]]] = {  # name -> draws a question and its answer
    "add1": _add1,
    "mul1": _mul1,
    "sub1": _sub1,
    "larger": _larger,
    "word": _word,
}


def draw_arithmetic(config: TasksConfig, *, seed: int, stream: Stream, count: int) -> list[Problem]:
    """`count` problems, the families of `tasks.name` taking turns. Raises ConfigError for an unknown family."""
    names = families(config, tuple(FAMILIES))
    grader = check(config.grader, "tasks.grader")
    randoms = {name: rng(seed, stream, name) for name in names}
    problems = []
    for index in range(count):
        name = names[index % len(names)]
        question, answer = FAMILIES[name](randoms[name])
        problems.append(
            Problem(
                id=problem_id(stream, name, index),
                messages=prompt(question),
                answer=str(answer),
                grader=grader,
                source={"family": name},
            )
        )
    return problems


def prompt(question: str) -> tuple[Message, ...]:
    """The solved turns and then the question, as chat messages."""
    messages: list[Message] = []
    for asked, answered in SOLVED:
        messages += [{"role": "user", "content": asked}, {"role": "assistant", "content": answered}]
    return (*messages, {"role": "user", "content": question})
