"""What an SGLang-style engine answers, checked and turned into `GenerateChunk`.

SGLang streams cumulative chunks; started with `--incremental-streaming-output` it streams increments. The two are told
apart by `completion_tokens`, which always counts from the start: so neither can be mistaken for the other, and a stream
that mixes them, loses tokens or contradicts itself is refused instead of being trained on.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from saocli.engine.base import GenerateChunk
from saocli.errors import ContextLengthExceeded, EngineError
from saocli.types import FinishReason, Span

_RETURN_TOKENS_FIX = "the engine must answer /generate with output_ids and, for return_logprob, output_token_logprobs"


def refusal(status: int, body: Any) -> EngineError:
    """The error an HTTP status other than 200 stands for. `body` is the decoded JSON, or text where it was none."""
    error = body.get("error", body.get("message", body)) if isinstance(body, Mapping) else body
    code = error.get("code") if isinstance(error, Mapping) else None
    message = str(error.get("message", error) if isinstance(error, Mapping) else error)
    # SGLang has no code for it, only the sentence.
    if status == 400 and (code == "context_length_exceeded" or "context length" in message):
        return ContextLengthExceeded(message, fix="shorten the prompt, ask for fewer tokens, or raise context_length")
    return EngineError(f"the engine refused the request ({status}): {message}")


class Answer:
    """One generation's answer as it grows; `add` takes a payload and gives the chunk of everything so far."""

    def __init__(self) -> None:
        self._ids: tuple[int, ...] = ()
        self._logprobs: tuple[float | None, ...] = ()
        self._incremental: bool | None = None  # unknown until a second payload with earlier tokens

    def add(self, payload: Any) -> GenerateChunk:
        """Check one payload against all before it. Raises EngineError for anything that does not fit."""
        if not isinstance(payload, Mapping):
            raise EngineError(f"the engine sent {type(payload).__name__} where an object was due")
        if "error" in payload:
            raise refusal(400, payload)
        meta = payload.get("meta_info")
        if not isinstance(meta, Mapping):
            raise EngineError("the engine's answer has no meta_info")
        ids = _token_ids(payload)
        logprobs = _logprobs(meta, ids)
        self._extend(ids, logprobs, meta.get("completion_tokens", len(ids)))
        reason, stop_match = _finish(meta.get("finish_reason"))
        return GenerateChunk(
            output_ids=self._ids,
            logprobs=self._logprobs,
            spans=_spans(meta, len(self._ids)),
            finish_reason=reason,
            stop_match=stop_match,
        )

    def _extend(self, ids: tuple[int, ...], logprobs: tuple[float | None, ...], total: Any) -> None:
        before = len(self._ids)
        cumulative = total == len(ids) and ids[:before] == self._ids
        incremental = total == before + len(ids)
        # With nothing before, or nothing new in an increment of an empty answer, both readings agree.
        if before and cumulative != incremental:
            if self._incremental not in (None, incremental):
                raise EngineError("the engine's stream mixes cumulative and incremental chunks")
            self._incremental = incremental
        elif not (cumulative or incremental):
            raise EngineError(
                f"the engine's stream is malformed: {len(ids)} token ids after {before}, completion_tokens {total}"
            )
        if cumulative:
            self._ids, self._logprobs = ids, logprobs
        else:
            self._ids, self._logprobs = self._ids + ids, self._logprobs + logprobs


def _token_ids(payload: Mapping[str, Any]) -> tuple[int, ...]:
    ids = payload.get("output_ids")
    if not isinstance(ids, list):
        raise EngineError("the engine returned no token ids (output_ids)", fix=_RETURN_TOKENS_FIX)
    if not all(type(token) is int for token in ids):
        raise EngineError("the engine returned output_ids that are not integers", fix=_RETURN_TOKENS_FIX)
    return tuple(ids)


def _logprobs(meta: Mapping[str, Any], ids: tuple[int, ...]) -> tuple[float | None, ...]:
    entries = meta.get("output_token_logprobs")
    if entries is None and ids:
        raise EngineError("the engine returned no log-probabilities (output_token_logprobs)", fix=_RETURN_TOKENS_FIX)
    try:
        pairs = [(entry[0], entry[1]) for entry in entries or ()]
    except (TypeError, IndexError, KeyError) as error:
        raise EngineError("the engine's output_token_logprobs are not [logprob, id, text] rows") from error
    if len(pairs) != len(ids):
        raise EngineError(f"the engine returned {len(ids)} token ids but {len(pairs)} log-probabilities")
    if any(token != owner for token, (_, owner) in zip(ids, pairs, strict=True)):
        raise EngineError("the engine's output_token_logprobs belong to other tokens than its output_ids")
    if not all(value is None or isinstance(value, float | int) for value, _ in pairs):
        raise EngineError("the engine returned log-probabilities that are not numbers")
    return tuple(None if value is None or not math.isfinite(value) else float(value) for value, _ in pairs)


def _spans(meta: Mapping[str, Any], total: int) -> tuple[Span, ...]:
    """The producing version of every token; engines that never swapped may name just the one version.

    Empty where none is named: such an answer is served, but cannot be trained on.
    """
    entries = meta.get("weight_versions")
    if entries is None:
        version = meta.get("weight_version")
        return (Span(version=version, start=0, end=total),) if isinstance(version, str) and total else ()
    try:
        spans = tuple(Span(version=str(e["version"]), start=int(e["start"]), end=int(e["end"])) for e in entries)
    except (TypeError, KeyError, ValueError) as error:
        raise EngineError(f"the engine's weight_versions are malformed: {entries!r}") from error
    spans = tuple(span for span in spans if span.end > span.start)
    ends = [0, *(span.end for span in spans)]
    if [span.start for span in spans] != ends[:-1] or ends[-1] != total:
        raise EngineError(f"the engine's weight_versions do not cover its {total} tokens: {entries!r}")
    return spans


def _finish(reason: Any) -> tuple[FinishReason | None, str | None]:
    if reason is None:
        return None, None
    try:
        kind = FinishReason(reason["type"])
    except (TypeError, KeyError, ValueError) as error:
        raise EngineError(f"the engine ended a generation for an unknown reason: {reason!r}") from error
    matched = reason.get("matched")
    return kind, matched if kind is FinishReason.STOP and isinstance(matched, str) else None
