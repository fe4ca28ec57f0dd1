"""The last box against the gold answer as mathematics, exactly: math-verify's reading, without its leniency."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from math_verify import LatexExtractionConfig, parse, verify

from saocli.tasks.graders.boxed import last_boxed, plain
from saocli.types import Problem

# Irrational values that agree to this many digits count as equal; rational ones are compared as they are.
_DIGITS = 60
# As math-verify's own, but units stay in the expression: `12 m` is not 12.
_LATEX = LatexExtractionConfig(
    boxed_match_priority=0,
    normalization_config=replace(LatexExtractionConfig().normalization_config, units=False),
)
_DECIMAL = re.compile(r"(?<![\d.])(\d*)\.(\d+)(?![\d.])")
_COMMAND = re.compile(r"\\[A-Za-z]+")
_WORD = re.compile(r"[A-Za-z]{2,}")
_TEXT = re.compile(r"\\(?:text|textbf|textit|textrm|mathrm|mbox|operatorname)\b|%")


def grade_math(problem: Problem, text: str) -> float:
    """1 if the last box equals the answer exactly, else 0; no box is a wrong answer.

    `\\frac12` and `0.5` are equal, `0.333` and `\\frac13` are not, nor are `12 apples` and `12` or `50\\%` and `50`.
    Raises ValueError when the gold answer itself cannot be read, and whatever the comparison raises.
    """
    found = last_boxed(text)
    if found is None:
        return 0.0
    if plain(found) == plain(problem.answer):
        return 1.0
    gold = _read(problem.answer)
    if not gold:
        raise ValueError(f"the gold answer {problem.answer!r} of {problem.id} is not readable as mathematics")
    if _words(found) - _words(problem.answer):
        return 0.0
    read = _read(found)
    return float(
        bool(read)
        and verify(
            gold, read, float_rounding=_DIGITS, numeric_precision=_DIGITS, timeout_seconds=None, raise_on_error=True
        )
    )


def _read(answer: str) -> list[Any]:
    """The answer as sympy expressions, decimals as the fractions they are; empty when it cannot be read."""
    exact = _DECIMAL.sub(_as_fraction, answer.strip().rstrip(".").strip("$"))
    return parse(f"\\boxed{{{exact}}}", [_LATEX], fallback_mode="no_fallback", parsing_timeout=None)


def _as_fraction(decimal: re.Match[str]) -> str:
    """`1.25` as the LaTeX of 125/100."""
    whole, part = decimal.groups()
    return f"\\frac{{{int(whole + part)}}}{{1{'0' * len(part)}}}"


def _words(answer: str) -> set[str]:
    """What math-verify would read past: runs of letters outside commands, text commands and percent signs."""
    return {*_TEXT.findall(answer), *_WORD.findall(_COMMAND.sub(" ", answer))}
