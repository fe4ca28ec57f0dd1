"""OpenAI answer bodies: chat and text, whole and in chunks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from saocli.gateway.deps import ChatCodec
from saocli.gateway.generation import Generation
from saocli.gateway.job import Piece
from saocli.types import FinishReason

# The API has no word for an aborted answer: it is one that was cut off. The receipt says `abort`.
WIRE_FINISH = {FinishReason.STOP: "stop", FinishReason.LENGTH: "length", FinishReason.ABORT: "length"}


class Shape(Protocol):
    """One kind of completion."""

    prefix: str  # of the answer's id
    whole: str  # `object` of an answer
    part: str  # `object` of a chunk

    def choice(self, index: int, generation: Generation) -> dict[str, Any]:
        """A choice of a whole answer."""
        ...

    def delta(self, piece: Piece, generation: Generation) -> dict[str, Any]:
        """A choice of a chunk."""
        ...


@dataclass(frozen=True)
class ChatShape:
    """/v1/chat/completions."""

    codec: ChatCodec
    logprobs: bool
    prefix = "chatcmpl-"
    whole = "chat.completion"
    part = "chat.completion.chunk"

    def choice(self, index: int, generation: Generation) -> dict[str, Any]:
        return {
            "index": index,
            "message": {"role": "assistant", "content": generation.text},
            "finish_reason": WIRE_FINISH[generation.finish_reason],
            "logprobs": self._logprobs(generation, 0, len(generation.output_ids)),
        }

    def delta(self, piece: Piece, generation: Generation) -> dict[str, Any]:
        delta = {"role": "assistant"} if piece.start == 0 and not piece.done else {}
        if not piece.done:
            delta["content"] = piece.text
        return {
            "index": piece.index,
            "delta": delta,
            "finish_reason": WIRE_FINISH[generation.finish_reason] if piece.done else None,
            "logprobs": None if piece.done else self._logprobs(generation, piece.start, piece.end),
        }

    def _logprobs(self, generation: Generation, start: int, end: int) -> dict[str, Any] | None:
        if not self.logprobs:
            return None
        content = []
        for token, logprob in zip(generation.output_ids[start:end], generation.logprobs[start:end], strict=False):
            text = self.codec.token_text(token)
            content.append({"token": text, "logprob": logprob, "bytes": list(text.encode()), "top_logprobs": []})
        return {"content": content, "refusal": None}


@dataclass(frozen=True)
class TextShape:
    """/v1/completions."""

    codec: ChatCodec
    logprobs: bool
    prefix = "cmpl-"
    whole = "text_completion"
    part = "text_completion"

    def choice(self, index: int, generation: Generation) -> dict[str, Any]:
        return {
            "index": index,
            "text": generation.text,
            "finish_reason": WIRE_FINISH[generation.finish_reason],
            "logprobs": self._logprobs(generation, 0, len(generation.output_ids)),
        }

    def delta(self, piece: Piece, generation: Generation) -> dict[str, Any]:
        return {
            "index": piece.index,
            "text": piece.text,
            "finish_reason": WIRE_FINISH[generation.finish_reason] if piece.done else None,
            "logprobs": None if piece.done else self._logprobs(generation, piece.start, piece.end),
        }

    def _logprobs(self, generation: Generation, start: int, end: int) -> dict[str, Any] | None:
        if not self.logprobs:
            return None
        return {
            "tokens": [self.codec.token_text(token) for token in generation.output_ids[start:end]],
            "token_logprobs": list(generation.logprobs[start:end]),
            "top_logprobs": None,
            "text_offset": None,
        }


def usage(prompt_tokens: int, completion_tokens: int) -> dict[str, int]:
    """Token counts; the stop token is one of the sampled."""
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }
