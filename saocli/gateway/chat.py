"""POST /v1/chat/completions."""

from __future__ import annotations

from typing import Any

from fastapi import Request
from starlette.responses import Response

from saocli.gateway.answer import answer
from saocli.gateway.body import offloaded, read_object, shown
from saocli.gateway.context import caller_of, require_health
from saocli.gateway.deps import CodecError, GatewayDeps
from saocli.gateway.errors import invalid
from saocli.gateway.job import Job
from saocli.gateway.params import CHAT, check_known, options_of, sampling_of
from saocli.gateway.shapes import ChatShape
from saocli.types import Message

ROLES = ("system", "developer", "user", "assistant", "tool")


async def chat_completions(deps: GatewayDeps, request: Request) -> Response:
    """Render the chat template, sample, record, answer."""
    require_health(deps)
    body = await read_object(request, deps.max_body_bytes)
    check_known(body, CHAT)
    options = options_of(body)
    messages = _messages(body.get("messages"))
    try:
        size = sum(len(message["content"]) for message in messages)
        prompt_ids = await offloaded(size, deps.codec.render, messages)
    except CodecError as error:
        raise invalid("messages", f"cannot be rendered: {error}") from error
    sampling = sampling_of(
        body,
        prompt="messages",
        prompt_tokens=len(prompt_ids),
        context_length=deps.context_length,
        seed=next(deps.seeds),
    )
    caller = await caller_of(deps, request)
    job = Job(deps, caller, prompt_ids, sampling, n=options.n, stream=options.stream)
    return await answer(deps, request, job, options, ChatShape(deps.codec, options.logprobs))


def _messages(value: Any) -> list[Message]:
    if not isinstance(value, list) or not value:
        raise invalid("messages", "must be a non-empty list of messages")
    return [_message(f"messages[{index}]", message) for index, message in enumerate(value)]


def _message(where: str, message: Any) -> Message:
    """Role and text; an OpenAI list of text parts becomes one string."""
    if not isinstance(message, dict) or message.get("role") not in ROLES:
        raise invalid(where, f"must be an object with a role of {', '.join(ROLES)}")
    content = message.get("content")
    if isinstance(content, list):
        parts = [
            part.get("text") if isinstance(part, dict) and part.get("type") == "text" else None for part in content
        ]
        if not all(isinstance(part, str) for part in parts):
            raise invalid(f"{where}.content", "has a part that is not text; this model reads text alone")
        content = "".join(part for part in parts if part is not None)
    if not isinstance(content, str):
        raise invalid(f"{where}.content", f"must be a string or a list of text parts, got {shown(content)}")
    extra = sorted(
        key for key, given in message.items() if key not in ("role", "content", "name") and given is not None
    )
    if extra:
        raise invalid(f"{where}.{extra[0]}", "is not supported by this service", code="unsupported_parameter")
    return {"role": message["role"], "content": content}
