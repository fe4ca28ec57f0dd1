"""What the rest of the program needs of a rollout engine, and nothing of how one works."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from saocli.types import FinishReason, Sampling, Span


@dataclass(frozen=True, kw_only=True, slots=True)
class GenerateRequest:
    """One generation, in token ids."""

    rid: str  # unique; also the handle for `abort`
    prompt_ids: tuple[int, ...]
    sampling: Sampling
    session: str | None = None  # calls that go on from one another; a router may keep them together
    stream: bool = False  # False: one final chunk is yielded; True: growing ones, the last of them final


@dataclass(frozen=True, kw_only=True, slots=True)
class GenerateChunk:
    """Everything generated so far (cumulative, as SGLang streams it). The last one carries `finish_reason`."""

    output_ids: tuple[int, ...]  # T so far, stop token included
    logprobs: tuple[float | None, ...]  # T, at the sampling temperature
    spans: tuple[Span, ...]  # cover [0, T)
    finish_reason: FinishReason | None = None
    stop_match: str | None = None  # the stop string that ended it, if one did


class Engine(Protocol):
    """A server of one model that samples token ids and swaps weights between decode steps."""

    def generate(self, request: GenerateRequest) -> AsyncIterator[GenerateChunk]:
        """Sample a response. Closing the iterator early aborts the request. Raises EngineError."""
        ...

    async def load(self, folder: Path, version: str) -> None:
        """Swap to the weights in HF folder `folder`; returns once they serve as `version`.

        Running requests continue on the new weights. On failure raises EngineError and the old version serves on.
        """
        ...

    async def version(self) -> str:
        """The weight version that serves now. Raises EngineError when the engine is down."""
        ...

    async def close(self) -> None:
        """End the engine and everything it started."""
        ...
