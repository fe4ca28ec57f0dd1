"""What is still to be attempted."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence

from saocli.config.tasks import Order
from saocli.errors import RunError
from saocli.types import Problem


class Plan:
    """Every problem `attempts` times; further attempts that became necessary go first."""

    def __init__(self, problems: Sequence[Problem], *, attempts: int, order: Order) -> None:
        numbers = range(1, attempts + 1)
        if order is Order.ROUND_ROBIN:
            self._left = deque((problem, number) for number in numbers for problem in problems)
        else:
            self._left = deque((problem, number) for problem in problems for number in numbers)
        self._made = Counter({problem.id: attempts for problem in problems})  # numbers given away, by problem
        self._extra = self._most = len(self._left)

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
