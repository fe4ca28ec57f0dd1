"""The official client, strict about every field."""

from __future__ import annotations

from pathlib import Path

import openai
import pytest
from enginefakes import Script, ScriptedEngine, say
from gatewaykit import TOKEN, Gateway, serving

from saocli.types import FinishReason


def client_of(gateway: Gateway, token: str = TOKEN, *, strict: bool = True) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(
        base_url=f"{gateway.url}/v1", api_key=token, max_retries=0, _strict_response_validation=strict
    )


@pytest.mark.parametrize("script", [say("Zoë"), Script(ids=()), Script(ids=(65,), finish=FinishReason.ABORT)])
async def test_whole_answers_parse(tmp_path: Path, script: Script) -> None:
    async with serving(tmp_path, ScriptedEngine(lambda _: script)) as gateway, client_of(gateway) as client:
        chat = await client.chat.completions.with_raw_response.create(
            model="tiny", messages=[{"role": "user", "content": "hi"}], logprobs=True, top_logprobs=1, n=2
        )
        parsed = chat.parse()
        assert len(parsed.choices) == 2
        assert parsed.choices[0].message.content is not None
        assert parsed.choices[0].logprobs is not None
        assert parsed.choices[0].logprobs.content is not None
        assert len(parsed.choices[0].logprobs.content) == len(script.ids)
        assert chat.headers["x-reef-agent-record-id"]
        text = await client.completions.create(model="tiny", prompt="a", logprobs=1)
        assert text.choices[0].text == parsed.choices[0].message.content
        assert [model.id for model in (await client.models.list()).data] == ["tiny"]


async def test_streams_parse(tmp_path: Path) -> None:
    async with serving(tmp_path, ScriptedEngine(lambda _: say("Zoë"))) as gateway, client_of(gateway) as client:
        stream = await client.chat.completions.create(
            model="tiny",
            messages=[{"role": "user", "content": "hi"}],
            stream=True,
            stream_options={"include_usage": True},
            logprobs=True,
        )
        chunks = [chunk async for chunk in stream]
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == "Zoë"
        assert chunks[-1].usage is not None
        assert chunks[-1].usage.completion_tokens == 5
        assert chunks[-1].model_extra is not None
        assert chunks[-1].model_extra["reef"]["agent_record_id"]
        # Its model of a text chunk has no null finish_reason, which the API itself sends: not strict here.
        async with client_of(gateway, strict=False) as lenient:
            text = await lenient.completions.create(model="tiny", prompt="a", stream=True)
            parts = [chunk.choices[0] async for chunk in text if chunk.choices]
        assert "".join(part.text for part in parts) == "Zoë"
        assert [part.finish_reason for part in parts][-1] == "stop"


async def test_refusals_are_the_clients_own_errors(tmp_path: Path) -> None:
    async with serving(tmp_path, ScriptedEngine(lambda _: say("A"))) as gateway, client_of(gateway) as client:
        messages: list[openai.types.chat.ChatCompletionMessageParam] = [{"role": "user", "content": "x" * 300}]
        with pytest.raises(openai.BadRequestError) as too_long:
            await client.chat.completions.create(model="tiny", messages=messages)
        assert too_long.value.code == "context_length_exceeded"
        async with client_of(gateway, "wrong") as stranger:
            with pytest.raises(openai.AuthenticationError):
                await stranger.models.list()
