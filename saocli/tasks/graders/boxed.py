"""The last `\\boxed{…}` of a reply, and the grader that compares it as text."""

from __future__ import annotations

from saocli.types import Problem

_OPEN = "\\boxed{"


def last_boxed(text: str) -> str | None:
    """The content of the last `\\boxed{…}` whose braces balance, or None; escaped braces don't count.

    Only the last one is looked at: if it never closes there is no answer, whatever stood before.
    """
    start = text.rfind(_OPEN)
    if start < 0:
        return None
    depth, position = 1, start + len(_OPEN)
    while position < len(text):
        match text[position]:
            case "\\":
                position += 1
            case "{":
                depth += 1
            case "}":
                depth -= 1
                if depth == 0:
                    return text[start + len(_OPEN) : position]
        position += 1
    return None


def plain(answer: str) -> str:
    """An answer without white space and the dollar signs around it."""
    return "".join(answer.split()).strip("$")


def grade_boxed(problem: Problem, text: str) -> float:
    """1 if the last box holds the answer, up to white space, else 0; no box is a wrong answer."""
    found = last_boxed(text)
    return float(found is not None and plain(found) == plain(problem.answer))
