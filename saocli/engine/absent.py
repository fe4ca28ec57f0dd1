"""Holds the engine's place until it is there."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

from saocli.engine.base import GenerateChunk, GenerateRequest
from saocli.errors import EngineError


class AbsentEngine:
    """An `Engine` that is still starting; the gateway asks for health first, so nothing gets this far."""

    async def generate(self, request: GenerateRequest) -> AsyncIterator[GenerateChunk]:
        raise EngineError("the engine is starting")
        yield

    async def load(self, folder: Path, version: str) -> None:
        raise EngineError("the engine is starting")

    async def version(self) -> str:
        raise EngineError("the engine is starting")

    async def close(self) -> None:
        """Nothing to end."""
