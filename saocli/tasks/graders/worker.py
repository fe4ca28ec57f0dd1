"""The grading process: reads pickled problems and replies from stdin, writes one JSON line for each event to stdout.

For a job it answers `{"loaded": true}` once the grader's library is imported, then `{"score": …}` or `{"error": …}`.
Everything a reply may do to it ends with it alone: memory is limited, and it does not outlive its parent even while a
C function holds the interpreter.
"""

from __future__ import annotations

import ctypes
import json
import logging
import math
import os
import pickle
import resource
import signal
import sys
from typing import Any, BinaryIO

from saocli.tasks.graders import registry
from saocli.types import Problem

MEMORY_BYTES = 2 * 1024**3
_PR_SET_PDEATHSIG = 1


def run(parent: int, timeout_s: float) -> None:
    """Serve jobs until stdin ends."""
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # what a library prints must not look like an answer
    logging.disable(logging.CRITICAL)
    _confine(parent)
    while True:
        try:
            problem, text = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        _limit_cpu(timeout_s)
        _answer(answers, problem, text)


def _answer(answers: BinaryIO, problem: Problem, text: str) -> None:
    """Grade one reply. A grader may raise anything at a model's output, so this is the one place that takes it all."""
    try:
        grade = registry.load(problem.grader)
        _say(answers, {"loaded": True})
        score = grade(problem, text)
        if not math.isfinite(score):
            raise ValueError(f"the score is {score}")
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # noqa: BLE001
        _say(answers, {"error": f"grader {problem.grader}: {type(error).__name__}: {error}"[:500]})
    else:
        _say(answers, {"score": score})


def _say(answers: BinaryIO, event: dict[str, Any]) -> None:
    answers.write(json.dumps(event).encode() + b"\n")


def _confine(parent: int) -> None:
    """Limit memory, and on Linux have the kernel kill this process when the parent dies."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before the kernel knew
        sys.exit(1)


def _limit_cpu(timeout_s: float) -> None:
    """Have the kernel end this process if a job uses much more processor time than its deadline allows."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    soft = math.ceil(used.ru_utime + used.ru_stime + timeout_s) + 60
    resource.setrlimit(resource.RLIMIT_CPU, (soft, resource.RLIM_INFINITY))


if __name__ == "__main__":
    run(int(sys.argv[1]), float(sys.argv[2]))
