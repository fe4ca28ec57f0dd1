"""Plays tasks through the gateway over HTTP as any outside client would: attempt, grade, report, wait until trained."""

from saocli.driver.attempt import Attempt
from saocli.driver.evaluation import Evaluation, evaluate
from saocli.driver.play import Driver

__all__ = ["Attempt", "Driver", "Evaluation", "evaluate"]
