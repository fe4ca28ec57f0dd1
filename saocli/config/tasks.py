"""conf/tasks/: what the driver and `sao attempt` play."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from omegaconf import MISSING

from saocli.config.choice import Choice


class TaskSource(Choice):
    """Where problems come from."""

    INLINE = "inline"  # listed in the conf
    ARITHMETIC = "arithmetic"  # procedural families with a 3-shot prompt
    LETTERS = "letters"  # procedural task for the tiny model
    FILE = "file"  # YAML, JSONL or CSV
    REASONING_GYM = "reasoning_gym"


class Order(Choice):
    """In which order a set's attempts are made."""

    BY_PROBLEM = "by_problem"  # every attempt at a problem before the next problem
    ROUND_ROBIN = "round_robin"  # every problem once before any twice


class Pacing(Choice):
    """What an attempt waits for."""

    BATCH = "batch"  # as many attempts as make one step, then until they are trained
    SLOTS = "slots"  # `concurrency` slots, each free again once its own attempt is trained or dropped
    NONE = "none"  # for nothing but a free slot


@dataclass(frozen=True)
class EvalConfig:
    """Held-out evaluation by the driver: fresh problems, answered but never reported."""

    samples: int = 0  # 0: no evaluation
    at: list[int] = field(default_factory=list)  # steps at which to evaluate; 0: before training, -1: after the last
    temperature: float = 1.0
    greedy: bool = False  # and the same problems once more at temperature 0
    concurrency: int = 8


@dataclass(frozen=True)
class TasksConfig:
    """A task set and how it is played."""

    source: TaskSource = MISSING
    items: list[Any] = field(default_factory=list)  # inline: {id, prompt, answer, grader?}
    path: str | None = None  # file: the set
    name: str | None = None  # arithmetic family or reasoning-gym dataset
    options: dict[str, Any] = field(
        default_factory=dict
    )  # passed to the reasoning-gym dataset / column names of a file
    count: int = 0  # problems to draw from a procedural source
    attempts: int = 1  # attempts per problem
    grader: str = "boxed"
    max_tokens: int = 128
    temperature: float = 1.0
    stop: list[str] = field(default_factory=list)
    concurrency: int = 1  # attempts in flight
    order: Order = Order.BY_PROBLEM
    pacing: Pacing = Pacing.BATCH
    feedback_s: float = 0.0  # median seconds from an answer to its report, as a slow environment or person takes
    feedback_sigma: float = 0.0  # of their log-normal distribution: 0 always takes the median, 1 has a long tail
    grade_timeout_s: float = 10.0
    eval: EvalConfig = field(default_factory=EvalConfig)
