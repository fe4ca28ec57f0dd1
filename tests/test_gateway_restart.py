"""What a client sees while the engine dies and comes back: a 503 that says when to ask again, and no false receipt."""

from __future__ import annotations

import json
from pathlib import Path

from enginefakes import Script, ScriptedEngine, say
from gatewaykit import SCENARIO, Gateway, serving

from saocli.errors import EngineRestarting, ProcessDied

DIED = EngineRestarting("the embedded engine died while it answered and is being started again")


async def receipts(gateway: Gateway) -> list[dict[str, object]]:
    answer = await gateway.http.get(f"/reef/scenarios/{SCENARIO}/records")
    return answer.json()["records"]


async def test_a_dead_engine_is_answered_503_with_the_time_to_wait_and_no_receipt(tmp_path: Path) -> None:
    async with serving(tmp_path, ScriptedEngine(lambda _: Script(ids=(), error=DIED))) as gateway:
        for stream in (False, True):
            response = await gateway.chat(stream=stream)
            assert response.status_code == 503
            assert int(response.headers["retry-after"]) >= 1
            assert "x-reef-agent-record-id" not in response.headers
            assert response.json() == {
                "error": {
                    "message": f"the engine cannot serve this now: {DIED.message}",
                    "type": "server_error",
                    "code": "engine_restarting",
                    "param": None,
                }
            }
        assert await receipts(gateway) == []


async def test_a_stream_that_had_begun_ends_with_the_error_and_is_never_trained(tmp_path: Path) -> None:
    async with serving(tmp_path, ScriptedEngine(lambda _: say("abc", error=DIED))) as gateway:
        body = {"messages": [{"role": "user", "content": "hi"}], "stream": True}
        async with gateway.http.stream("POST", "/v1/chat/completions", json=body) as response:
            assert response.status_code == 200
            events = [line.removeprefix("data: ") async for line in response.aiter_lines() if line]
        assert json.loads(events[-1])["error"]["code"] == "engine_restarting"
        assert [json.loads(event)["choices"][0]["delta"]["content"] for event in events[:-1]] == ["a", "b", "c"]
        (record,) = await receipts(gateway)
        assert (record["trainable"], record["why_not"]) == (False, "aborted")
        reported = await gateway.report(str(record["agent_record_id"]))
        assert reported.json()["trains"] is False


async def test_the_end_of_a_log_stays_with_us(tmp_path: Path) -> None:
    died = ProcessDied("the engine was killed by SIGKILL while answering\n       │ /secret/path", fix="its log: /runs")
    async with serving(tmp_path, ScriptedEngine(lambda _: Script(ids=(), error=died))) as gateway:
        response = await gateway.chat()
        assert response.status_code == 503
        assert "SIGKILL" in response.text
        assert "secret" not in response.text


async def test_the_engine_is_told_which_calls_belong_together(tmp_path: Path) -> None:
    engine = ScriptedEngine(lambda _: say("abc"))
    async with serving(tmp_path, engine) as gateway:
        await gateway.chat(headers={"x-sao-session": "game-1"})
        await gateway.chat()
    assert [request.session for request in engine.requests] == ["game-1", None]
