"""One generation: the engine's chunks as ids, log-probs and text that end together."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import cast

from saocli.engine.base import Engine, GenerateChunk, GenerateRequest
from saocli.gateway.deps import Decoder
from saocli.gateway.stops import StopTrimmer
from saocli.types import FinishReason, Span


class Generation:
    """What the engine has answered so far to one request.

    The text is cut before a stop string and leaves out special tokens, while ids and log-probs end with the token that
    completed the stop string, or with the stop token: nothing after it is kept.
    """

    def __init__(self, request: GenerateRequest, decoder: Decoder) -> None:
        self.request = request
        self.output_ids: tuple[int, ...] = ()
        self.logprobs: tuple[float | None, ...] = ()
        self.spans: tuple[Span, ...] = ()
        self.finish_reason = FinishReason.ABORT  # until it ends otherwise
        self._decoder = decoder
        self._trimmer = StopTrimmer(request.sampling.stop)
        self._text: list[str] = []

    @property
    def receipt(self) -> str:
        """The engine's request id is the receipt's id."""
        return self.request.rid

    @property
    def text(self) -> str:
        """As the client sees it."""
        return "".join(self._text)

    @property
    def versions(self) -> tuple[str, ...]:
        """The weight versions that answered, oldest first."""
        return tuple(dict.fromkeys(span.version for span in self.spans))

    async def run(self, engine: Engine) -> AsyncIterator[str]:
        """Generate; yields the text that each chunk adds. Ending early aborts the engine's request."""
        chunks = cast(AsyncGenerator[GenerateChunk, None], engine.generate(self.request))
        async with aclosing(chunks):
            async for chunk in chunks:
                text = self._take(chunk)
                self._text.append(text)
                yield text
                if self._trimmer.matched or chunk.finish_reason is not None:
                    return

    def _take(self, chunk: GenerateChunk) -> str:
        seen, end, added = len(self.output_ids), len(chunk.output_ids), []
        for position in range(seen, end):
            added.append(self._trimmer.push(self._decoder.push(chunk.output_ids[position])))
            if self._trimmer.matched:
                end = position + 1
                break
        if chunk.finish_reason is not None and not self._trimmer.matched:
            self.finish_reason = chunk.finish_reason
            added += [self._trimmer.push(self._decoder.flush()), self._trimmer.flush()]
        if self._trimmer.matched:
            self.finish_reason = FinishReason.STOP
        self.output_ids = chunk.output_ids[:end]
        # An engine that gives another number of log-probs than ids must stay visible in the record.
        cut = end < len(chunk.output_ids)
        self.logprobs = chunk.logprobs[:end] if cut else chunk.logprobs
        self.spans = _clipped(chunk.spans, end) if cut else chunk.spans
        return "".join(added)


def _clipped(spans: tuple[Span, ...], end: int) -> tuple[Span, ...]:
    return tuple(
        Span(version=span.version, start=span.start, end=min(span.end, end)) for span in spans if span.start < end
    )
