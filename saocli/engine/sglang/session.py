"""What SGLang's weight updates that name tensors have in common: they lie between an opening and a closing call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from saocli.engine.publish import Control
from saocli.errors import EngineError

BUCKET_BYTES = 512 * 2**20  # what is on its way at once


async def open_update(engine: Control) -> None:
    """Raises EngineError, as all of these."""
    await agreed(engine, "/begin_weight_update", {"selector": "all"}, doing="opening the update")


async def close_update(engine: Control) -> None:
    """Have SGLang make of what it has been given whatever it computes with."""
    await agreed(engine, "/end_weight_update", {}, doing="closing the update")


async def agreed(engine: Control, path: str, body: Mapping[str, Any], *, doing: str) -> None:
    """A command that must succeed."""
    answer = await engine.command(path, body, doing=doing)
    if answer.get("success") is not True:
        raise EngineError(f"the engine failed while {doing}: {answer.get('message')}")
