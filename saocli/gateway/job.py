"""The generations of one HTTP request: run side by side, each recorded before its end is told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, replace

from saocli.engine.base import GenerateRequest
from saocli.errors import RunError
from saocli.gateway.context import Caller
from saocli.gateway.deps import GatewayDeps
from saocli.gateway.generation import Generation
from saocli.processors.judge import Reason, untrainable
from saocli.types import Exchange, FinishReason, Sampling


@dataclass(frozen=True, kw_only=True, slots=True)
class Piece:
    """What one engine chunk added to one choice; tokens [start, end) are new. A piece that is done adds nothing."""

    index: int
    text: str
    start: int
    end: int
    done: bool


class Job:
    """`n` generations of one prompt."""

    def __init__(
        self,
        deps: GatewayDeps,
        caller: Caller,
        prompt_ids: tuple[int, ...],
        sampling: Sampling,
        *,
        n: int,
        stream: bool,
    ) -> None:
        self.prompt_ids = prompt_ids
        self.generations = [
            Generation(
                GenerateRequest(
                    rid=deps.new_id(),
                    prompt_ids=prompt_ids,
                    sampling=_nth_seed(sampling, index),
                    session=caller.session,
                    stream=stream,
                ),
                deps.codec.decoder(),
            )
            for index in range(n)
        ]
        self._deps = deps
        self._caller = caller
        self._queue: asyncio.Queue[Piece | asyncio.Task[None]] = asyncio.Queue()
        self._why_ended = Reason.CLIENT_DISCONNECT  # what a generation that is cancelled is recorded with

    @property
    def completion_tokens(self) -> int:
        """Sampled tokens of all choices."""
        return sum(len(generation.output_ids) for generation in self.generations)

    @property
    def receipts(self) -> str:
        """As headers carry it: one id, or for several choices theirs in order."""
        return ", ".join(generation.receipt for generation in self.generations)

    @property
    def versions(self) -> str:
        """The weights that answered so far, oldest first."""
        return ", ".join(dict.fromkeys(version for generation in self.generations for version in generation.versions))

    async def finish(self) -> None:
        """Run to the end, for an answer that is given in one piece."""
        async with aclosing(self.pieces()) as pieces:
            async for _ in pieces:
                pass

    async def pieces(self) -> AsyncGenerator[Piece, None]:
        """Everything that is generated, as it comes. Ending early stops and records all generations.

        Raises what the engine or the store raised (RunError), and ApiError when there is no room for so many.
        """
        room = await self._deps.admission.enter(len(self.generations), trainable=self._may_train())
        tasks = [asyncio.create_task(self._run(index)) for index in range(len(self.generations))]
        for task in tasks:
            task.add_done_callback(self._queue.put_nowait)
        left = len(tasks)
        try:
            while left:
                item = await self._queue.get()
                if isinstance(item, Piece):
                    yield item
                    continue
                left -= 1
                if not item.cancelled() and isinstance(item.exception(), RunError):
                    self._why_ended = Reason.ABORTED
                item.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._deps.admission.leave(room)

    async def _run(self, index: int) -> None:
        generation = self.generations[index]
        start = 0
        try:
            async for text in generation.run(self._deps.engine):
                end = len(generation.output_ids)
                self._queue.put_nowait(Piece(index=index, text=text, start=start, end=end, done=False))
                start = end
        except asyncio.CancelledError:
            await self._record(generation, self._why_ended)
            raise
        except RunError:
            if generation.output_ids:
                await self._record(generation, Reason.ABORTED)
            raise
        several = Reason.SEVERAL_CHOICES if len(self.generations) > 1 else None
        # Once the generation is complete, a client that leaves changes nothing: the record is written as it is.
        await asyncio.shield(self._record(generation, several))
        self._queue.put_nowait(Piece(index=index, text="", start=start, end=start, done=True))

    async def _record(self, generation: Generation, why_not: Reason | None) -> None:
        exchange = Exchange(
            receipt=generation.receipt,
            scenario=self._caller.scenario,
            session=self._caller.session,
            prompt_ids=self.prompt_ids,
            output_ids=generation.output_ids,
            logprobs=generation.logprobs,
            spans=generation.spans,
            sampling=generation.request.sampling,
            finish_reason=FinishReason.ABORT if why_not is Reason.CLIENT_DISCONNECT else generation.finish_reason,
            text=generation.text,
            created_at=self._deps.clock(),
            tags=self._caller.tags,
        )
        reason = why_not or untrainable(exchange)
        if reason is not None:
            exchange = replace(exchange, trainable=False, why_not=reason.value)
        await self._deps.writing(self._deps.records.add_exchange, exchange)
        if exchange.trainable and self._deps.trains_on(self._caller.scenario):
            self._deps.admission.opened(exchange.receipt, exchange.created_at)

    def _may_train(self) -> bool:
        """Whether what is asked for can make a rollout that trains."""
        sampling = self.generations[0].request.sampling
        single = len(self.generations) == 1 and self._deps.trains_on(self._caller.scenario)
        return single and sampling.temperature > 0 and not sampling.truncations()


def _nth_seed(sampling: Sampling, index: int) -> Sampling:
    """Choices of one request must differ, so each has the next seed."""
    return sampling if sampling.seed is None or index == 0 else replace(sampling, seed=sampling.seed + index)
