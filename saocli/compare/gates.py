"""`--fail-under`: a comparison that fails unless an arm's mean reward is above another's, or above a number.

A>B   A>=B   A>B+0.05   A>0.5   A>>B (above it, and separated: three seeds or more)
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from saocli.compare.results import Comparison
from saocli.compare.stats import arm_interval, difference
from saocli.compare.two_samples import EXACT
from saocli.errors import ConfigError

GRAMMAR = re.compile(r"\s*([^\s<>=+]+)\s*(>>|>=|>)\s*([^\s<>=+]+)\s*(?:\+\s*(\S+))?\s*")
SEPARATED = ">>"
FORMS = "write A>B, A>=B, A>B+0.05, A>0.5 or A>>B"


@dataclass(frozen=True, kw_only=True, slots=True)
class Gate:
    """`left` is to be above `right` plus `margin`."""

    text: str
    left: str  # an arm's label
    operator: str  # > | >= | >>
    right: str | float  # an arm's label, or a mean reward
    margin: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class GateResult:
    """A gate and the numbers that it was decided by."""

    gate: Gate
    left: float
    right: float
    passed: bool
    separated: bool | None  # None unless the gate asks for it

    def __str__(self) -> str:
        margin = f" + {self.gate.margin:g}" if self.gate.margin else ""
        apart = {None: "", True: ", separated", False: ", not separated"}[self.separated]
        verb = "holds" if self.passed else "does not hold"
        return f"{self.gate.text} {verb}: mean reward {self.left:.3f} against {self.right:.3f}{margin}{apart}"


def parse_gate(text: str, labels: Sequence[str]) -> Gate:
    """Raises ConfigError for what the grammar does not have, and for arms that are not among `labels`."""
    found = GRAMMAR.fullmatch(text)
    if found is None:
        raise ConfigError(f"--fail-under '{text}' is not a gate", fix=f"{FORMS}; the arms are {' · '.join(labels)}")
    left, operator, right, added = found.groups()
    if left not in labels:
        raise _unknown(text, left, labels)
    bound = right if right in labels else _number(right)
    if bound is None:
        raise _unknown(text, right, labels)
    margin = _number(added or "0")
    if margin is None:
        raise ConfigError(f"--fail-under '{text}': {added} is not a number", fix=FORMS)
    if bound == left:
        raise ConfigError(f"--fail-under '{text}' compares {left} to itself", fix=f"arms: {' · '.join(labels)}")
    if operator == SEPARATED and (added or isinstance(bound, float)):
        raise ConfigError(f"--fail-under '{text}': >> is between two arms, without a margin", fix=FORMS)
    return Gate(text=text.strip(), left=left, operator=operator, right=bound, margin=margin)


def check_gate(comparison: Comparison, gate: Gate) -> GateResult:
    """Decide one gate on the mean reward over all rollouts. Raises RunError for an arm without a scored one."""
    arms = {arm.label: arm for arm in comparison.arms}
    left = arm_interval(arms[gate.left]).mean
    right = gate.right if isinstance(gate.right, float) else arm_interval(arms[gate.right]).mean
    above = left - right - gate.margin
    passed = above > -EXACT if gate.operator == ">=" else above > EXACT
    separated = None
    if gate.operator == SEPARATED:
        separated = difference(arms[gate.left], arms[str(gate.right)]).separated
    return GateResult(gate=gate, left=left, right=right, separated=separated, passed=passed and separated is not False)


def check_gates(comparison: Comparison, gates: Sequence[Gate]) -> list[str]:
    """A sentence for every gate that does not hold."""
    results = [check_gate(comparison, gate) for gate in gates]
    return [str(result) for result in results if not result.passed]


def _unknown(text: str, arm: str, labels: Sequence[str]) -> ConfigError:
    return ConfigError(f"--fail-under '{text}': no arm named '{arm}'", fix=f"there are: {' · '.join(labels)}")


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None
