"""Reading the body of POST /generate. Every fault is an EngineError that names the field."""

from __future__ import annotations

import math
from typing import Any

from saocli.engine.embedded.model import ServedModel
from saocli.engine.embedded.sequence import Sequence
from saocli.engine.embedded.stops import StopStrings
from saocli.errors import ContextLengthExceeded, EngineError
from saocli.types import Sampling

_MIN_TEMPERATURE = 1e-5
# Fields of SGLang's sampling_params that are served; the last two only shape its text, which is not sent here.
_FIELDS = {
    "max_new_tokens", "temperature", "top_p", "top_k", "min_p", "frequency_penalty", "presence_penalty",
    "stop", "stop_token_ids", "ignore_eos", "sampling_seed", "skip_special_tokens", "no_stop_trim",
}  # fmt: skip


def parse_generate(body: dict[str, Any], rid: str, model: ServedModel) -> Sequence:
    """The request in `body`, checked against the model's vocabulary and context length."""
    prompt = _ids(body.get("input_ids"), "input_ids", model.vocab_size)
    if not prompt:
        raise EngineError("input_ids must hold at least one token")
    params = body.get("sampling_params") or {}
    if not isinstance(params, dict):
        raise EngineError("sampling_params must be an object")
    unknown = sorted(params.keys() - _FIELDS)
    if unknown:
        raise EngineError(f"unknown field in sampling_params: {', '.join(unknown)}")
    sampling = _sampling(params)
    if len(prompt) + sampling.max_new_tokens > model.context_length:
        raise ContextLengthExceeded(
            f"{len(prompt)} prompt tokens plus {sampling.max_new_tokens} new ones exceed the context length of "
            f"{model.context_length} tokens"
        )
    stops = None
    if sampling.stop:
        if model.tokenizer is None:
            raise EngineError("stop strings need a tokenizer, and the model's folder has none")
        stops = StopStrings(sampling.stop, model.tokenizer)
    end_ids = set(_ids(params.get("stop_token_ids") or [], "stop_token_ids", model.vocab_size))
    return Sequence(
        rid=rid,
        prompt_ids=prompt,
        sampling=sampling,
        end_ids=end_ids if params.get("ignore_eos") else end_ids | model.eos_ids,
        stops=stops,
        return_logprob=bool(body.get("return_logprob", False)),
    )


def _sampling(params: dict[str, Any]) -> Sampling:
    temperature = _number(params, "temperature", 1.0, 0.0, 1e3)
    if 0 < temperature < _MIN_TEMPERATURE:
        raise EngineError(f"temperature must be 0 or at least {_MIN_TEMPERATURE}, got {temperature}")
    stop = params.get("stop") or ()
    stop = (stop,) if isinstance(stop, str) else tuple(stop)
    if not all(isinstance(string, str) and string for string in stop):
        raise EngineError("stop must be a non-empty string or a list of them")
    seed = params.get("sampling_seed")
    return Sampling(
        temperature=temperature,
        max_new_tokens=_integer(params, "max_new_tokens", 128, 1),
        top_p=_number(params, "top_p", 1.0, 1e-6, 1.0),
        top_k=_integer(params, "top_k", -1, -1),
        min_p=_number(params, "min_p", 0.0, 0.0, 1.0),
        frequency_penalty=_number(params, "frequency_penalty", 0.0, -2.0, 2.0),
        presence_penalty=_number(params, "presence_penalty", 0.0, -2.0, 2.0),
        stop=stop,
        seed=None if seed is None else _integer(params, "sampling_seed", 0, -(2**63)),
    )


def _number(params: dict[str, Any], name: str, default: float, low: float, high: float) -> float:
    value = params.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise EngineError(f"{name} must be a number, got {value!r}")
    if not low <= value <= high:
        raise EngineError(f"{name} must be between {low} and {high}, got {value}")
    return float(value)


def _integer(params: dict[str, Any], name: str, default: int, low: int) -> int:
    value = params.get(name, default)
    if type(value) is not int or value < low:
        raise EngineError(f"{name} must be an integer of at least {low}, got {value!r}")
    return value


def _ids(value: Any, name: str, vocab_size: int) -> list[int]:
    if not isinstance(value, list) or not all(type(token) is int and 0 <= token < vocab_size for token in value):
        raise EngineError(f"{name} must be a list of token ids in [0, {vocab_size})")
    return value
