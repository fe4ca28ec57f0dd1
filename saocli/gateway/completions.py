"""POST /v1/completions: a raw prompt, as text or as token ids."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import Request
from starlette.responses import Response

from saocli.gateway.answer import answer
from saocli.gateway.body import offloaded, read_object, whole
from saocli.gateway.context import caller_of, require_health
from saocli.gateway.deps import GatewayDeps
from saocli.gateway.errors import invalid
from saocli.gateway.job import Job
from saocli.gateway.params import TEXT, check_known, options_of, sampling_of
from saocli.gateway.shapes import TextShape


async def completions(deps: GatewayDeps, request: Request) -> Response:
    """Sample a continuation, record, answer."""
    require_health(deps)
    body = await read_object(request, deps.max_body_bytes)
    check_known(body, TEXT)
    options = options_of(body)
    prompt_ids = await _prompt_ids(deps, body)
    sampling = sampling_of(
        body,
        prompt="prompt",
        prompt_tokens=len(prompt_ids),
        context_length=deps.context_length,
        seed=next(deps.seeds),
    )
    caller = await caller_of(deps, request)
    job = Job(deps, caller, prompt_ids, sampling, n=options.n, stream=options.stream)
    return await answer(deps, request, job, options, TextShape(deps.codec, options.logprobs))


async def _prompt_ids(deps: GatewayDeps, body: Mapping[str, Any]) -> tuple[int, ...]:
    prompt = body.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    if isinstance(prompt, str):
        ids = await offloaded(len(prompt), deps.codec.encode, prompt)
    else:
        ids = _listed(prompt)
    if not ids:
        raise invalid("prompt", "is empty")
    limit = deps.codec.vocab_size
    if not all(0 <= token < limit for token in ids):
        raise invalid("prompt", f"has a token id outside of 0 … {limit - 1}")
    return ids


def _listed(prompt: Any) -> tuple[int, ...]:
    tokens = [whole(item) for item in prompt] if isinstance(prompt, list) else [None]
    ids = tuple(token for token in tokens if token is not None)
    if len(ids) < len(tokens):
        raise invalid("prompt", "must be one string or one list of token ids")
    return ids
