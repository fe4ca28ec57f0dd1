"""Parameters of a generation request: what is understood, and a 400 that names anything else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from saocli.gateway.body import boolean, integer, number, shown, whole
from saocli.gateway.errors import context_exceeded, invalid
from saocli.types import Sampling

MAX_N = 64
MAX_STOPS = 16
MAX_TEMPERATURE = 2.0
SEED_LIMIT = 2**63

SHARED = {
    *("model", "max_tokens", "temperature", "top_p", "top_k", "min_p", "frequency_penalty", "presence_penalty", "stop"),
    *("n", "seed", "stream", "stream_options", "logprobs", "user"),
}
CHAT = frozenset(SHARED | {"messages", "max_completion_tokens", "top_logprobs"})
TEXT = frozenset(SHARED | {"prompt"})

# Values of parameters we do not have that ask for what happens anyway.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "tools": ([],),
    "functions": ([],),
    "tool_choice": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "logit_bias": ({},),
    "metadata": ({},),
    "store": (False,),
    "service_tier": ("auto", "default"),
    "echo": (False,),
    "suffix": ("",),
    "best_of": (1,),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """How a request wants its answer."""

    n: int
    stream: bool
    include_usage: bool  # in the stream's last chunk
    logprobs: bool


def check_known(body: Mapping[str, Any], known: frozenset[str]) -> None:
    """400 naming the first parameter that would be ignored."""
    for name, value in body.items():
        if name not in known and value is not None and value not in NEUTRAL.get(name, ()):
            raise invalid(name, "is not supported by this service", code="unsupported_parameter")


def options_of(body: Mapping[str, Any]) -> Options:
    """n, stream, stream_options and logprobs."""
    stream = boolean(body, "stream")
    extra = body.get("stream_options")
    if extra is not None and (not stream or not isinstance(extra, dict)):
        raise invalid("stream_options", "must be an object, and needs stream: true")
    return Options(
        n=integer(body, "n", low=1, high=MAX_N) or 1,
        stream=stream,
        include_usage=boolean(extra or {}, "include_usage"),
        logprobs=_wants_logprobs(body),
    )


def sampling_of(
    body: Mapping[str, Any], *, prompt: str, prompt_tokens: int, context_length: int, seed: int
) -> Sampling:
    """The sampling parameters; `seed` is used when the request has none.

    `prompt` names the field that `prompt_tokens` came from. Without max_tokens the response may fill the context; a
    larger max_tokens is cut to what fits. 400 when nothing fits.
    """
    room = context_length - prompt_tokens
    if room < 1:
        raise context_exceeded(prompt_tokens, context_length, prompt)
    limits = [integer(body, name, low=1, high=SEED_LIMIT) for name in ("max_tokens", "max_completion_tokens")]
    given = integer(body, "seed", low=-SEED_LIMIT, high=SEED_LIMIT - MAX_N)
    return Sampling(
        temperature=number(body, "temperature", default=1.0, low=0.0, high=MAX_TEMPERATURE),
        max_new_tokens=min(room, *(limit for limit in limits if limit is not None)) if any(limits) else room,
        top_p=_top_p(body),
        top_k=_top_k(body),
        min_p=number(body, "min_p", default=0.0, low=0.0, high=1.0),
        frequency_penalty=number(body, "frequency_penalty", default=0.0, low=-2.0, high=2.0),
        presence_penalty=number(body, "presence_penalty", default=0.0, low=-2.0, high=2.0),
        stop=_stops(body),
        seed=seed if given is None else given,
    )


def _wants_logprobs(body: Mapping[str, Any]) -> bool:
    """Chat: a bool, with top_logprobs beside it; completions: a number of alternatives.

    The engine records the sampled tokens' log-probs alone, so lists of alternatives stay empty.
    """
    asked = body.get("logprobs")
    if "messages" not in body:
        return integer(body, "logprobs", low=0, high=20) is not None
    wanted = boolean(body, "logprobs")
    if integer(body, "top_logprobs", low=0, high=20) and not asked:
        raise invalid("top_logprobs", "needs logprobs: true")
    return wanted


def _top_p(body: Mapping[str, Any]) -> float:
    value = number(body, "top_p", default=1.0, low=0.0, high=1.0)
    if value == 0.0:
        raise invalid("top_p", "must be above 0; temperature 0 gives greedy sampling")
    return value


def _top_k(body: Mapping[str, Any]) -> int:
    value = body.get("top_k")
    if value is None:
        return -1
    result = whole(value)
    if result is None or not (result == -1 or 1 <= result < 2**31):
        raise invalid("top_k", f"must be a positive integer, or -1 for no limit, got {shown(value)}")
    return result


def _stops(body: Mapping[str, Any]) -> tuple[str, ...]:
    value = body.get("stop")
    if value is None:
        return ()
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or not all(isinstance(stop, str) and stop for stop in stops):
        raise invalid("stop", f"must be a non-empty string or a list of them, got {shown(value)}")
    if len(stops) > MAX_STOPS:
        raise invalid("stop", f"has {len(stops)} strings, at most {MAX_STOPS} are possible")
    return tuple(stops)
