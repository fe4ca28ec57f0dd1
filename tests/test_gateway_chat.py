"""Chat and text completions: what is answered and what is recorded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from enginefakes import EOS, Script, ScriptedEngine, say
from gatewaykit import serving, tiny_codec

from saocli.errors import ContextLengthExceeded, EngineError, ProcessDied
from saocli.gateway.deps import HealthState
from saocli.types import FinishReason, Span


def events(text: str) -> list[dict[str, Any]]:
    lines = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    assert lines.pop() == "[DONE]"
    return [json.loads(line) for line in lines]


async def test_the_receipt_holds_what_was_sampled(tmp_path: Path) -> None:
    spans = (Span(version="s@0", start=0, end=1), Span(version="s@1", start=1, end=3))
    engine = ScriptedEngine(lambda _: say("AB", logprobs=(-0.1, -0.2, -0.3), spans=spans))
    headers = {"x-reef-tag-task": "imo-4", "x-sao-session": "c1"}
    async with serving(tmp_path, engine) as gateway:
        response = await gateway.chat(headers=headers, temperature=0.5, max_tokens=9, seed=3)
        body = response.json()
        assert body["choices"][0]["message"]["content"] == "AB"
        assert body["choices"][0]["finish_reason"] == "stop"
        assert body["usage"] == {"prompt_tokens": 21, "completion_tokens": 3, "total_tokens": 24}
        assert response.headers["x-reef-weight-version"] == "s@0, s@1"
        record = await gateway.record(response.headers["x-reef-agent-record-id"])
    assert record["prompt_ids"] == list(tiny_codec().render([{"role": "user", "content": "hi"}]))
    assert record["output_ids"] == [65, 66, EOS]
    assert record["logprobs"] == [-0.1, -0.2, -0.3]
    assert [(span["version"], span["start"], span["end"]) for span in record["spans"]] == [("s@0", 0, 1), ("s@1", 1, 3)]
    assert (record["sampling"]["temperature"], record["sampling"]["max_new_tokens"]) == (0.5, 9)
    assert (record["tags"], record["session"], record["finish_reason"]) == ({"task": "imo-4"}, "c1", "stop")
    assert (record["trainable"], record["why_not"], record["state"]) == (True, None, "open")
    assert engine.requests[0].sampling.seed == 3


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("per_chunk", [1, 3, 8])
@pytest.mark.parametrize(
    ("said", "stop", "text", "kept"),
    [
        ("ABCDEF", "CD", "AB", "ABCD"),
        ("ABCDEF", ["F", "DE"], "ABC", "ABCDE"),
        ("ABCDEF", "XY", "ABCDEF", None),
        ("ABAB", "ABA", "", "ABA"),
        ("AAB", "AB", "A", "AAB"),
        ("ABC", "CD", "ABC", None),
    ],
)
async def test_text_ends_before_a_stop_string_and_tokens_with_it(
    tmp_path: Path, stream: bool, per_chunk: int, said: str, stop: Any, text: str, kept: str | None
) -> None:
    """The engine goes on after the match here: what it adds is neither shown nor recorded."""
    engine = ScriptedEngine(lambda _: say(said, per_chunk=per_chunk))
    async with serving(tmp_path, engine) as gateway:
        response = await gateway.chat(stop=stop, stream=stream)
        if stream:
            chunks = events(response.text)
            shown = "".join(c["choices"][0]["delta"].get("content", "") for c in chunks if c["choices"])
            receipt = chunks[-1]["reef"]["agent_record_id"]
        else:
            shown = response.json()["choices"][0]["message"]["content"]
            receipt = response.headers["x-reef-agent-record-id"]
        record = await gateway.record(receipt)
    ids = [*said.encode(), EOS] if kept is None else [*kept.encode()]
    assert shown == record["text"] == text
    assert record["output_ids"] == ids
    assert len(record["logprobs"]) == len(ids)
    assert record["spans"][-1]["end"] == len(ids)
    assert (record["finish_reason"], record["trainable"]) == ("stop", True)


async def test_a_streamed_answer_is_the_same_in_parts(tmp_path: Path) -> None:
    said = "Zoë ✓ 🎉"
    async with serving(tmp_path, ScriptedEngine(lambda _: say(said))) as gateway:
        response = await gateway.chat(stream=True, stream_options={"include_usage": True})
        assert response.headers["content-type"].startswith("text/event-stream")
        assert response.headers["x-reef-weight-version"] == "s@0"
        chunks = events(response.text)
        assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
        assert "".join(c["choices"][0]["delta"].get("content", "") for c in chunks[:-1]) == said
        assert [c["choices"][0]["finish_reason"] for c in chunks[:-1]] == [None] * (len(chunks) - 2) + ["stop"]
        assert chunks[-1]["choices"] == []
        assert chunks[-1]["usage"]["completion_tokens"] == len(said.encode()) + 1
        record = await gateway.record(chunks[-1]["reef"]["agent_record_id"])
        assert record["text"] == said
        assert record["output_ids"] == [*said.encode(), EOS]


@pytest.mark.parametrize(
    ("script", "finish", "why_not"),
    [
        (Script(ids=(EOS,)), "stop", None),
        (Script(ids=()), "stop", "empty_completion"),
        (Script(ids=(65, 66, 67), finish=FinishReason.ABORT), "length", "aborted"),
        (Script(ids=(65, 66), finish=FinishReason.LENGTH), "length", None),
        (Script(ids=(65, 66), finish=None), "length", "aborted"),
        (Script(ids=(65, 66), logprobs=(-0.5, None)), "stop", "missing_logprobs"),
        (Script(ids=(65, 66), logprobs=(-0.5,)), "stop", "length_mismatch"),
        (Script(ids=(65, 66), logprobs=()), "stop", "missing_logprobs"),
        (Script(ids=(65, 66), spans=()), "stop", "length_mismatch"),
    ],
)
async def test_odd_endings_are_well_formed_and_recorded(
    tmp_path: Path, script: Script, finish: str, why_not: str | None
) -> None:
    async with serving(tmp_path, ScriptedEngine(lambda _: script)) as gateway:
        response = await gateway.chat(logprobs=True)
        choice = response.json()["choices"][0]
        assert choice["finish_reason"] == finish
        record = await gateway.record(response.headers["x-reef-agent-record-id"])
        assert (record["trainable"], record["why_not"]) == (why_not is None, why_not)
        assert response.json()["usage"]["completion_tokens"] == len(script.ids)
        answer = (await gateway.report(record["agent_record_id"])).json()
        assert (answer["trains"], answer["reason"]) == (why_not is None, why_not)


@pytest.mark.parametrize(
    ("fields", "why_not"),
    [
        ({"top_p": 0.9}, "sampling_truncated"),
        ({"top_k": 5}, "sampling_truncated"),
        ({"frequency_penalty": 0.5}, "sampling_truncated"),
        ({"temperature": 0}, "temperature_zero"),
        ({"top_p": 1, "top_k": -1, "presence_penalty": 0.0}, None),
    ],
)
async def test_sampling_that_cannot_be_trained_is_served_and_says_so(
    tmp_path: Path, fields: dict[str, Any], why_not: str | None
) -> None:
    async with serving(tmp_path, ScriptedEngine(lambda _: say("A"))) as gateway:
        record = await gateway.record(await gateway.receipt(**fields))
        assert record["why_not"] == why_not


async def test_several_choices_share_the_prompt_and_never_train(tmp_path: Path) -> None:
    engine = ScriptedEngine(lambda request: say("ABC"[request.sampling.seed - 5]))  # type: ignore[operator]
    async with serving(tmp_path, engine) as gateway:
        response = await gateway.chat(n=3, seed=5)
        body = response.json()
        assert [choice["message"]["content"] for choice in body["choices"]] == ["A", "B", "C"]
        assert body["usage"] == {"prompt_tokens": 21, "completion_tokens": 6, "total_tokens": 27}
        receipts = response.headers["x-reef-agent-record-id"].split(", ")
        assert [(await gateway.record(receipt))["why_not"] for receipt in receipts] == ["several_choices"] * 3
        chunks = events((await gateway.chat(n=3, seed=5, stream=True)).text)
        texts = {0: "", 1: "", 2: ""}
        for chunk in chunks[:-1]:
            texts[chunk["choices"][0]["index"]] += chunk["choices"][0]["delta"].get("content", "")
        assert texts == {0: "A", 1: "B", 2: "C"}


async def test_logprobs_are_those_of_the_sampled_tokens_and_null_where_json_has_no_number(tmp_path: Path) -> None:
    engine = ScriptedEngine(lambda _: say("AB", logprobs=(-0.25, None, -1.5)))
    async with serving(tmp_path, engine) as gateway:
        chat = (await gateway.chat(logprobs=True, top_logprobs=2)).json()["choices"][0]["logprobs"]["content"]
        assert [(entry["token"], entry["logprob"]) for entry in chat] == [
            ("A", -0.25),
            ("B", None),
            ("<|im_end|>", -1.5),
        ]
        text = await gateway.http.post("/v1/completions", json={"prompt": "x", "logprobs": 0})
        assert text.json()["choices"][0]["logprobs"]["token_logprobs"] == [-0.25, None, -1.5]
        assert (await gateway.chat()).json()["choices"][0]["logprobs"] is None


async def test_a_raw_prompt_is_text_or_ids(tmp_path: Path) -> None:
    engine = ScriptedEngine(lambda _: say("B"))
    async with serving(tmp_path, engine) as gateway:
        for prompt in ("hé", list("hé".encode()), ["hé"]):
            body = (await gateway.http.post("/v1/completions", json={"prompt": prompt})).json()
            assert body["choices"][0]["text"] == "B"
            assert engine.requests[-1].prompt_ids == tuple("hé".encode())
        for prompt in ("", [], [1, True], [-1], [260], ["a", "b"], None, 3, {}):
            refused = await gateway.http.post("/v1/completions", json={"prompt": prompt})
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, "prompt"), prompt
        stream = events((await gateway.http.post("/v1/completions", json={"prompt": "a", "stream": True})).text)
        assert "".join(chunk["choices"][0]["text"] for chunk in stream[:-1]) == "B"


async def test_a_prompt_must_leave_room_and_the_answer_may_fill_it(tmp_path: Path) -> None:
    engine = ScriptedEngine(lambda _: say("A"))
    async with serving(tmp_path, engine, context_length=64) as gateway:
        refused = await gateway.chat("x" * 45)
        assert refused.status_code == 400
        assert refused.json()["error"]["code"] == "context_length_exceeded"
        assert "64" in refused.json()["error"]["message"]
        assert (await gateway.http.get("/reef/scenarios/s/records")).json()["records"] == []
        await gateway.chat("x" * 44)
        assert engine.requests[-1].sampling.max_new_tokens == 1
        await gateway.chat("x" * 24)
        assert engine.requests[-1].sampling.max_new_tokens == 21
        await gateway.chat("x" * 24, max_tokens=1000)
        assert engine.requests[-1].sampling.max_new_tokens == 21
        await gateway.chat("x" * 24, max_tokens=7, max_completion_tokens=5)
        assert engine.requests[-1].sampling.max_new_tokens == 5


async def test_seeds_come_from_the_run_and_go_on_after_a_restart(tmp_path: Path) -> None:
    async def seeds(folder: Path, calls: int) -> list[int | None]:
        folder.mkdir(exist_ok=True)
        engine = ScriptedEngine(lambda _: say("A"))
        async with serving(folder, engine, seed=7) as gateway:
            for _ in range(calls):
                await gateway.chat()
        return [request.sampling.seed for request in engine.requests]

    straight = await seeds(tmp_path / "a", 4)
    assert len(set(straight)) == 4
    assert await seeds(tmp_path / "b", 2) + await seeds(tmp_path / "b", 2) == straight


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (EngineError("swapping"), 503, "engine_unavailable"),
        (ProcessDied("gone"), 503, "engine_unavailable"),
        (ContextLengthExceeded("too long"), 400, "context_length_exceeded"),
    ],
)
async def test_an_engine_that_refuses_is_never_a_500(
    tmp_path: Path, stream: bool, error: EngineError, status: int, code: str
) -> None:
    engine = ScriptedEngine(lambda _: Script(ids=(), error=error))
    async with serving(tmp_path, engine) as gateway:
        response = await gateway.chat(stream=stream)
        assert (response.status_code, response.json()["error"]["code"]) == (status, code)
        assert ("retry-after" in response.headers) == (status == 503)
        assert (await gateway.http.get("/reef/scenarios/s/records")).json()["records"] == []


async def test_an_engine_that_fails_midway_ends_the_stream_with_an_error_and_an_aborted_receipt(tmp_path: Path) -> None:
    engine = ScriptedEngine(lambda _: Script(ids=(65, 66, 67), error=EngineError("died")))
    async with serving(tmp_path, engine) as gateway:
        response = await gateway.chat(stream=True)
        last = response.text.strip().split("\n\n")[-1]
        assert json.loads(last.removeprefix("data: "))["error"]["code"] == "engine_unavailable"
        (record,) = (await gateway.http.get("/reef/scenarios/s/records")).json()["records"]
        assert (record["finish_reason"], record["why_not"], record["completion_tokens"]) == ("abort", "aborted", 2)


async def test_nothing_is_generated_before_the_service_is_healthy(tmp_path: Path) -> None:
    engine = ScriptedEngine(lambda _: say("A"))
    state = {"health": HealthState(ok=False, reason="the trainer restores step 7")}
    async with serving(tmp_path, engine, health=lambda: state["health"]) as gateway:
        refused = await gateway.chat()
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        assert "restores step 7" in refused.json()["error"]["message"]
        health = await gateway.http.get("/healthz")
        assert (health.status_code, health.json()) == (503, {"ok": False, "reason": "the trainer restores step 7"})
        state["health"] = HealthState(ok=True)
        assert (await gateway.chat()).status_code == 200
        assert (await gateway.http.get("/healthz")).json() == {"ok": True}
    assert len(engine.requests) == 1
