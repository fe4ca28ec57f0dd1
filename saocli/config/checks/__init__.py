"""What must hold between the values of a run; checked once, when the run is built.

One file per topic; each of their functions yields the problems it finds.
"""

from __future__ import annotations

from collections.abc import Iterator

from saocli.config.checks.arm import arm
from saocli.config.checks.batch import batch, lengths
from saocli.config.checks.engine import engine
from saocli.config.checks.gateway import gateway
from saocli.config.checks.gpus import gpus
from saocli.config.checks.numbers import LEAST, numbers
from saocli.config.checks.problem import Problem
from saocli.config.checks.servers import servers
from saocli.config.checks.trainer import parallel, schedule
from saocli.config.run import RunConfig
from saocli.errors import ConfigError

__all__ = ["LEAST", "Problem", "check"]


def check(config: RunConfig) -> None:
    """Raise ConfigError for the first thing that cannot run; it names the keys and their values."""
    for problem in _problems(config):
        raise ConfigError(problem.message, fix=problem.fix)


def _problems(config: RunConfig) -> Iterator[Problem]:
    yield from numbers(config)
    yield from batch(config)
    yield from arm(config)
    yield from lengths(config)
    yield from parallel(config)
    yield from schedule(config)
    yield from engine(config)
    yield from servers(config)
    yield from gpus(config)
    yield from gateway(config)
