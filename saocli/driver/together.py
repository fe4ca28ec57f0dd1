"""Several coroutines as one."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Sequence
from typing import Any, TypeVar

from saocli.errors import SaoError

T = TypeVar("T")


async def together(work: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """All results in order; the first failure ends the rest and is raised as itself."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one) for one in work]
    except* SaoError as failures:
        raise failures.exceptions[0] from None
    return [task.result() for task in tasks]


async def until(over: asyncio.Future[Any], work: Coroutine[Any, Any, None]) -> None:
    """Do the work, or leave it where it is when `over` comes first. Raises what the work raises."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait({over, task}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
    finally:
        await cancelled([task])


async def cancelled(tasks: Iterable[asyncio.Future[Any]]) -> None:
    """End the tasks and wait until they have ended."""
    tasks = list(tasks)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
