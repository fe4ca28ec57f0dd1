"""The arm's own numbers, its groups, and the tasks that must feed them."""

from __future__ import annotations

import math
from collections.abc import Iterator

from saocli.config.arms import arm_names, facts
from saocli.config.checks.problem import Problem
from saocli.config.run import RunConfig
from saocli.config.tasks import Order, Pacing


def arm(config: RunConfig) -> Iterator[Problem]:
    arm, needs = config.arm, facts(config.arm.name)
    if needs is None:
        yield Problem(f"arm.name is '{arm.name}', which is not an arm", f"there are: {' · '.join(arm_names())}")
        return
    if not 0 < arm.eps_low < 1:
        yield Problem(
            f"arm.eps_low is {arm.eps_low}", "ratios above 1 - arm.eps_low are kept: it must lie between 0 and 1"
        )
    if not (math.isfinite(arm.eps_high) and arm.eps_high > 0):
        yield Problem(f"arm.eps_high is {arm.eps_high}", "ratios below 1 + arm.eps_high are kept: it must be above 0")
    if not 0 <= arm.gamma <= 1:
        yield Problem(f"arm.gamma is {arm.gamma}", "it must lie between 0 and 1")
    if not (math.isfinite(arm.lambda_alpha) and arm.lambda_alpha > 0):
        yield Problem(f"arm.lambda_alpha is {arm.lambda_alpha}", "lambda = 1 - 1/(alpha * tokens): it must be above 0")
    if needs.grouped:
        yield from _group(config)
    elif arm.group_size != 1:
        yield Problem(
            f"arm.group_size is {arm.group_size} for arm.name={arm.name}",
            "this arm takes single rollouts: set it to 1",
        )
    if needs.trains:
        yield from _slots(config)


def _group(config: RunConfig) -> Iterator[Problem]:
    """A group is `arm.group_size` consecutive attempts at one problem."""
    arm, tasks, size = config.arm, config.tasks, config.arm.group_size
    if size < 2:
        yield Problem(
            f"arm.group_size is {size} for arm.name={arm.name}", "this arm compares rollouts: at least 2 to a group"
        )
        return
    if tasks.attempts < size:
        times = "once" if tasks.attempts == 1 else f"{tasks.attempts} times"
        yield Problem(
            f"every prompt comes {times} (tasks.attempts={tasks.attempts}): a group of {size} can never form",
            f"set tasks.attempts={size} and tasks.count to 1/{size} for as many rollouts, or take single ones: arm=sao",
        )
    for key, value in (("batch_size", config.batch_size), ("tasks.attempts", tasks.attempts)):
        if value % size:
            yield Problem(
                f"{key} is {value}, not a multiple of arm.group_size, {size}", "a group would never be complete"
            )
    if tasks.order is Order.ROUND_ROBIN:
        yield Problem(
            f"tasks.order is round_robin but arm.name={arm.name} has arm.group_size={size}",
            f"a group is {size} consecutive attempts at one problem: set tasks.order=by_problem",
        )
    if tasks.pacing is Pacing.SLOTS and tasks.concurrency < size:
        yield Problem(
            f"tasks.concurrency is {tasks.concurrency} with tasks.pacing=slots, less than arm.group_size, {size}",
            "a slot is free again once its attempt is trained, so a group needs a slot for each of its rollouts",
        )


def _slots(config: RunConfig) -> Iterator[Problem]:
    tasks = config.tasks
    if tasks.pacing is Pacing.SLOTS and config.batch_size > tasks.concurrency:
        yield Problem(
            f"batch_size is {config.batch_size} with tasks.pacing=slots, more than tasks.concurrency, "
            f"{tasks.concurrency}",
            "a slot is free again once its attempt is trained: with fewer slots than that no batch is ever full",
        )
