"""Every parameter is understood or refused by name; nothing is ignored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from enginefakes import ScriptedEngine, say
from gatewaykit import serving

BAD = [
    ("temperature", -0.1),
    ("temperature", 2.5),
    ("temperature", "1"),
    ("temperature", True),
    ("top_p", 0),
    ("top_p", 1.1),
    ("top_k", 0),
    ("top_k", 1.5),
    ("min_p", 2),
    ("presence_penalty", 3),
    ("max_tokens", 0),
    ("max_tokens", 1.5),
    ("max_tokens", True),
    ("max_completion_tokens", -1),
    ("n", 0),
    ("n", 65),
    ("seed", 2**63),
    ("seed", 1.5),
    ("stop", ""),
    ("stop", [1]),
    ("stop", ["a", ""]),
    ("stop", ["a"] * 17),
    ("stream", "yes"),
    ("stream_options", {"include_usage": True}),
    ("logprobs", 1),
    ("top_logprobs", 2),
    ("tools", [{"type": "function"}]),
    ("response_format", {"type": "json_object"}),
    ("logit_bias", {"1": 5}),
    ("ignore_eos", True),
    ("temprature", 1.0),
]


async def test_what_is_wrong_or_unknown_is_named(tmp_path: Path) -> None:
    engine = ScriptedEngine(lambda _: say("A"))
    async with serving(tmp_path, engine) as gateway:
        for name, value in BAD:
            response = await gateway.chat(**{name: value})
            error = response.json()["error"]
            assert (response.status_code, error["param"]) == (400, name), (name, value)
            assert error["message"].startswith(name)
            assert error["type"] == "invalid_request_error"
    assert not engine.requests


async def test_null_and_neutral_values_are_as_if_not_given(tmp_path: Path) -> None:
    fields: dict[str, Any] = {name: None for name, _ in BAD}
    fields |= {"tools": [], "response_format": {"type": "text"}, "logit_bias": {}, "store": False, "user": "me"}
    engine = ScriptedEngine(lambda _: say("A"))
    async with serving(tmp_path, engine) as gateway:
        assert (await gateway.chat(**fields)).status_code == 200


@pytest.mark.parametrize(
    "messages",
    [
        None,
        [],
        "hi",
        [1],
        [{"role": "user"}],
        [{"role": "robot", "content": "a"}],
        [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}],
        [{"role": "assistant", "content": "a", "tool_calls": [{}]}],
    ],
)
async def test_messages_are_checked(tmp_path: Path, messages: Any) -> None:
    async with serving(tmp_path, ScriptedEngine(lambda _: say("A"))) as gateway:
        response = await gateway.http.post("/v1/chat/completions", json={"messages": messages})
        assert response.status_code == 400
        assert response.json()["error"]["param"].startswith("messages")


async def test_text_parts_are_joined(tmp_path: Path) -> None:
    engine = ScriptedEngine(lambda _: say("A"))
    async with serving(tmp_path, engine) as gateway:
        parts = [{"type": "text", "text": "h"}, {"type": "text", "text": "i"}]
        await gateway.http.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": parts}]})
        await gateway.chat("hi")
    assert engine.requests[0].prompt_ids == engine.requests[1].prompt_ids


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff\xfe",
        b'{"messages": "\\ud800"}',
        b'{"a":' * 5000 + b"1" + b"}" * 5000,
        b'{"a":' * 100 + b"1" + b"}" * 100,
    ],
)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/reef/report", "/reef/scenarios"])
async def test_a_body_that_is_no_json_object_is_a_400(tmp_path: Path, content: bytes, path: str) -> None:
    async with serving(tmp_path, ScriptedEngine(lambda _: say("A"))) as gateway:
        response = await gateway.http.post(path, content=content)
        assert (response.status_code, response.json()["error"]["code"]) == (400, "invalid_json")


async def test_headers_have_rules(tmp_path: Path) -> None:
    async with serving(tmp_path, ScriptedEngine(lambda _: say("A"))) as gateway:
        bad = [
            ({"x-reef-scenario": "../etc"}, "scenario"),
            ({"x-reef-scenario": "a" * 65}, "scenario"),
            ({"x-reef-scenario": ""}, "scenario"),
            ({"x-sao-session": "a b"}, "x-sao-session"),
            ({"x-reef-tag-a": "x" * 257}, "x-reef-tag-a"),
            ({"x-reef-tag-": "x"}, "x-reef-tag-"),
        ]
        for headers, param in bad:
            response = await gateway.chat(headers=headers)
            assert (response.status_code, response.json()["error"]["param"]) == (400, param)
        many = {f"x-reef-tag-{number}": "x" for number in range(17)}
        assert (await gateway.chat(headers=many)).status_code == 400
