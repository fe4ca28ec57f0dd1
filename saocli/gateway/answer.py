"""From a job to its answer, whole or streamed; shared by chat and text completions."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from fastapi import Request
from fastapi.responses import JSONResponse
from starlette.responses import Response

from saocli.errors import RunError
from saocli.gateway.deps import GatewayDeps
from saocli.gateway.errors import CLIENT_CLOSED, from_run_error
from saocli.gateway.job import Job, Piece
from saocli.gateway.params import Options
from saocli.gateway.shapes import Shape, usage
from saocli.gateway.stream import DONE, ClientGone, EventStream, event, unless_gone

RECEIPT_HEADER = "x-reef-agent-record-id"
VERSION_HEADER = "x-reef-weight-version"


async def answer(deps: GatewayDeps, request: Request, job: Job, options: Options, shape: Shape) -> Response:
    """Run the job and answer. A client that leaves ends the generations at once."""
    head = {"id": shape.prefix + job.generations[0].receipt, "created": int(deps.clock()), "model": deps.model}
    reply = Reply(job=job, options=options, shape=shape, head=head)
    try:
        return await (reply.streamed(request) if options.stream else reply.whole(request))
    except ClientGone:
        return Response(status_code=CLIENT_CLOSED)


@dataclass(frozen=True, kw_only=True, slots=True)
class Reply:
    """A job, how its answer is wanted, and what each body starts with."""

    job: Job
    options: Options
    shape: Shape
    head: dict[str, Any]

    async def whole(self, request: Request) -> Response:
        """One JSON body at the end."""
        job = self.job
        await unless_gone(request.receive, job.finish())
        choices = [self.shape.choice(index, generation) for index, generation in enumerate(job.generations)]
        body = self.head | {"object": self.shape.whole, "choices": choices, "usage": self._usage()}
        return JSONResponse(body, headers={RECEIPT_HEADER: job.receipts, VERSION_HEADER: job.versions})

    async def streamed(self, request: Request) -> Response:
        """Events. The head goes out with the first tokens: an engine that refuses is answered with its status.

        The receipt is not in the head, since it is not recorded yet: the last chunk names it.
        """
        pieces = self.job.pieces()
        first = await unless_gone(request.receive, anext(pieces))
        return EventStream(self._events(first, pieces), {VERSION_HEADER: self.job.versions})

    async def _events(self, first: Piece, rest: AsyncGenerator[Piece, None]) -> AsyncGenerator[bytes, None]:
        job = self.job
        async with aclosing(rest):
            try:
                yield self._chunk(first)
                async for piece in rest:
                    if piece.text or piece.done or piece.end > piece.start:
                        yield self._chunk(piece)
            except RunError as error:
                yield event(from_run_error(error).body())
                return
        last = self.head | {"object": self.shape.part, "choices": []}
        last["reef"] = {"agent_record_id": job.receipts, "weight_version": job.versions}
        if self.options.include_usage:
            last["usage"] = self._usage()
        yield event(last)
        yield DONE

    def _chunk(self, piece: Piece) -> bytes:
        choice = self.shape.delta(piece, self.job.generations[piece.index])
        return event(self.head | {"object": self.shape.part, "choices": [choice]})

    def _usage(self) -> dict[str, int]:
        return usage(len(self.job.prompt_ids), self.job.completion_tokens)
