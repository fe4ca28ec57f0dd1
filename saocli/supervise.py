"""Waiting for a run's tasks to end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any


async def first_failure_or(needed: Iterable[asyncio.Future[Any]], others: Iterable[asyncio.Future[Any]]) -> None:
    """Return once all that are needed have ended; raise what any task raises before."""
    needed = set(needed)
    pending = needed | set(others)
    while needed & pending:
        done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()


async def call_when(event: asyncio.Event, then: Callable[[], None]) -> None:
    """Wait for the event, then call."""
    await event.wait()
    then()
