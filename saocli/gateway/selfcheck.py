"""One real generation before serving: an engine that gives no training data is refused at once."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import cast

from saocli.engine.base import Engine, GenerateChunk, GenerateRequest
from saocli.errors import EngineError
from saocli.gateway.deps import ChatCodec
from saocli.gateway.ids import new_ulid
from saocli.types import Sampling

FIX = "the engine must answer with token ids, their log-probabilities and the weight version of each"


async def self_check(engine: Engine, codec: ChatCodec) -> str:
    """Returns the weight version that answered. Raises EngineError when ids, log-probs or versions are missing."""
    request = GenerateRequest(
        rid=new_ulid(), prompt_ids=codec.encode("1 + 1 ="), sampling=Sampling(max_new_tokens=2, seed=0)
    )
    last: GenerateChunk | None = None
    async with aclosing(cast(AsyncGenerator[GenerateChunk, None], engine.generate(request))) as chunks:
        async for chunk in chunks:
            last = chunk
    if last is None or not last.output_ids:
        raise EngineError("the engine returns no token ids", fix=FIX)
    if len(last.logprobs) != len(last.output_ids) or any(value is None for value in last.logprobs):
        raise EngineError("the engine returns no log-probabilities for its token ids", fix=FIX)
    if not last.spans or last.spans[-1].end != len(last.output_ids):
        raise EngineError("the engine does not say which weights sampled each token", fix=FIX)
    return last.spans[-1].version
