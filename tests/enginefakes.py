"""A scripted engine behind the `Engine` Protocol: it says what a test tells it to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path

from saocli.engine.base import GenerateChunk, GenerateRequest
from saocli.errors import RunError
from saocli.types import FinishReason, Span

EOS = 257  # <|im_end|> of the tiny model


@dataclass(frozen=True, kw_only=True)
class Script:
    """One answer: its tokens, how they come, and how it ends."""

    ids: tuple[int, ...]
    logprobs: tuple[float | None, ...] | None = None  # None: −0.5 each
    spans: tuple[Span, ...] | None = None  # None: one span of the engine's version
    finish: FinishReason | None = FinishReason.STOP
    stop_match: str | None = None
    per_chunk: int = 1  # tokens a streamed chunk adds
    delay_s: float = 0.0  # before each token
    error: RunError | None = None  # raised instead of the end


def say(text: str, **options: object) -> Script:
    """The tiny model's ids of `text` (its tokens are bytes) and the stop token."""
    return Script(ids=(*text.encode(), EOS), **options)  # type: ignore[arg-type]


@dataclass
class ScriptedEngine:
    """Answers each request by `script`; remembers requests and which of them were closed early."""

    script: Callable[[GenerateRequest], Script]
    weights: str = "s@0"
    requests: list[GenerateRequest] = field(default_factory=list)
    closed_early: list[str] = field(default_factory=list)

    async def generate(self, request: GenerateRequest) -> AsyncIterator[GenerateChunk]:
        self.requests.append(request)
        script = self.script(request)
        total, finished = len(script.ids), False
        try:
            step = script.per_chunk if request.stream else max(total, 1)
            for end in [*range(step, total, step), total]:
                if script.delay_s:
                    await asyncio.sleep(script.delay_s * step)
                if end == total and script.error is not None:
                    raise script.error
                finished = end == total
                yield self._chunk(script, end, total)
        finally:
            if not finished:
                self.closed_early.append(request.rid)

    def _chunk(self, script: Script, end: int, total: int) -> GenerateChunk:
        last = end == total
        whole = (Span(version=self.weights, start=0, end=end),) if end else ()
        logprobs = (-0.5,) * total if script.logprobs is None else script.logprobs
        return GenerateChunk(
            output_ids=script.ids[:end],
            logprobs=logprobs if last else logprobs[:end],
            spans=whole if script.spans is None else tuple(span for span in script.spans if span.end <= end),
            finish_reason=script.finish if last else None,
            stop_match=script.stop_match if last else None,
        )

    async def load(self, folder: Path, version: str) -> None:
        self.weights = version

    async def version(self) -> str:
        return self.weights

    async def close(self) -> None:
        pass
