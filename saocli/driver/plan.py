"""What is still to be attempted."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Sequence

from saocli.config.tasks import Order
from saocli.errors import RunError
from saocli.types import Problem


class Plan:
    """Every problem `attempts` times, phase after phase; further attempts that became necessary go first."""

    def __init__(
        self, problems: Sequence[Problem], *, attempts: int, order: Order, before: Collection[tuple[str, int]] = ()
    ) -> None:
        """`before`: problem and number of the attempts that were made already."""
        numbers = range(1, attempts + 1)
        every: list[tuple[Problem, int]] = []
        for phase in sorted({problem.phase for problem in problems}):
            among = [problem for problem in problems if problem.phase == phase]
            if order is Order.ROUND_ROBIN:
                every += [(problem, number) for number in numbers for problem in among]
            else:
                every += [(problem, number) for problem in among for number in numbers]
        self._left = deque((problem, number) for problem, number in every if (problem.id, number) not in before)
        self._made = Counter({problem.id: attempts for problem in problems})  # numbers given away, by problem
        for problem, number in before:
            self._made[problem] = max(self._made[problem], number)
        self._most = len(every)
        self._extra = self._most - sum(number > attempts for _, number in before)

    def __len__(self) -> int:
        return len(self._left)

    def next(self) -> tuple[Problem, int]:
        """The problem to attempt next, and the attempt's number."""
        return self._left.popleft()

    def again(self, problem: Problem) -> None:
        """One more attempt at it, with a number and so a seed of its own. Raises RunError when there were too many."""
        if self._extra == 0:
            raise RunError(
                f"{self._most + 1} attempts did not train, and each leaves a group incomplete: more than were planned",
                fix="`sao status` counts the reasons: if stale, raise max_staleness or lower tasks.concurrency",
            )
        self._extra -= 1
        self._made[problem.id] += 1
        self._left.appendleft((problem, self._made[problem.id]))
