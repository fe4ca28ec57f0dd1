"""Answers in SGLang's form: what is taken, in both streaming forms, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from enginekit import payload

from saocli.engine.payload import Answer, refusal
from saocli.errors import ContextLengthExceeded, EngineError
from saocli.types import FinishReason, Span


def test_an_answer_with_spans() -> None:
    spans = [{"version": "v0", "start": 0, "end": 2}, {"version": "v1", "start": 2, "end": 3}]
    chunk = Answer().add(payload([1, 2, 3], weight_versions=spans, finish_reason={"type": "stop", "matched": "B"}))
    assert chunk.output_ids == (1, 2, 3)
    assert chunk.logprobs == (-0.5, -1.0, -1.5)
    assert chunk.spans == (Span(version="v0", start=0, end=2), Span(version="v1", start=2, end=3))
    assert (chunk.finish_reason, chunk.stop_match) == (FinishReason.STOP, "B")


def test_a_matched_end_token_is_no_stop_string() -> None:
    assert Answer().add(payload([1, 2], finish_reason={"type": "stop", "matched": 2})).stop_match is None


def test_one_version_without_spans_covers_all() -> None:
    assert Answer().add(payload([1, 2])).spans == (Span(version="v0", start=0, end=2),)


def test_without_any_version_there_are_no_spans() -> None:
    chunk = Answer().add(payload([1, 2], weight_version=None))
    assert (chunk.output_ids, chunk.spans) == ((1, 2), ())


def test_an_answer_of_no_tokens() -> None:
    chunk = Answer().add(payload([], output_token_logprobs=[], finish_reason={"type": "abort", "message": "…"}))
    assert (chunk.output_ids, chunk.spans, chunk.finish_reason) == ((), (), FinishReason.ABORT)


def test_numbers_json_cannot_carry_become_none() -> None:
    rows = [[None, 1, None], [float("-inf"), 2, None], [-1.0, 3, None]]
    assert Answer().add(payload([1, 2, 3], output_token_logprobs=rows)).logprobs == (None, None, -1.0)


def test_both_streaming_forms_give_the_same() -> None:
    cumulative, incremental = Answer(), Answer()
    whole = [cumulative.add(payload(ids)) for ids in ([1], [1, 1], [1, 1, 2], [1, 1, 2, 3])]
    grown = [incremental.add(payload(ids, total=n)) for n, ids in enumerate(([1], [1], [2], [3]), start=1)]
    assert whole == grown
    assert grown[-1].logprobs == (-0.5, -0.5, -1.0, -1.5)


@pytest.mark.parametrize(
    ("stream", "why"),
    [
        ([payload([1, 2]), payload([1, 2, 3]), payload([4], total=4)], "mixes"),
        ([payload([1, 2]), payload([3], total=3), payload([1, 2, 3, 4])], "mixes"),
        ([payload([1, 2]), payload([1, 3, 4])], "malformed"),  # tokens changed afterwards
        ([payload([1, 2]), payload([1])], "malformed"),  # shrank
        ([payload([1, 2]), payload([4], total=4)], "malformed"),  # one was lost
        ([payload([1, 2], total=3)], "malformed"),
        ([{"meta_info": payload([1])["meta_info"]}], "no token ids"),
        ([payload([1], output_token_logprobs=None)], "no log-probabilities"),
        ([payload([1, 2], output_token_logprobs=[[-1.0, 1, None]])], "2 token ids but 1 log-prob"),
        ([payload([1, 2], output_token_logprobs=[[-1.0, 1, None], [-1.0, 3, None]])], "other tokens"),
        ([payload([1], output_token_logprobs=[["-1.0", 1, None]])], "not numbers"),
        ([payload([1], output_token_logprobs=[-1.0])], "rows"),
        ([payload([1, 2], weight_versions=[{"version": "v0", "start": 0, "end": 1}])], "do not cover"),
        ([payload([1, 2], weight_versions=[{"version": "v0", "start": 1, "end": 2}])], "do not cover"),
        ([payload([1], finish_reason={"type": "tired"})], "unknown reason"),
        ([{"output_ids": [1]}], "no meta_info"),
        ([payload([1]) | {"output_ids": ["1"]}], "not integers"),
        (["text"], "str where an object"),
        ([{"error": {"message": "out of memory"}}], "out of memory"),
    ],
)
def test_what_does_not_fit_is_refused(stream: list[Any], why: str) -> None:
    answer = Answer()
    with pytest.raises(EngineError, match=why):
        for item in stream:
            answer.add(item)


def test_refusals_keep_the_engines_words() -> None:
    assert "unknown field topp" in str(refusal(400, {"error": "unknown field topp"}))
    assert "boom" in str(refusal(500, "boom"))
    long = "The input (30 tokens) is longer than the model's context length (20 tokens)."
    for body in ({"error": {"message": long}}, {"error": {"code": "context_length_exceeded", "message": "too long"}}):
        assert isinstance(refusal(400, body), ContextLengthExceeded)
