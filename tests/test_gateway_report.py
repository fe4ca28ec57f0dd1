"""Reports: stored once, durable, and never stored when they are wrong."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from enginefakes import ScriptedEngine, say
from gatewaykit import serving

SCORES = ["NaN", "Infinity", "-Infinity", '"1"', "true", "null", "1e400", "-1e400", "[1]", "{}", "1" + "0" * 400]


def engine() -> ScriptedEngine:
    return ScriptedEngine(lambda _: say("AB"))


async def test_a_score_is_a_finite_number_or_refused_by_name(tmp_path: Path) -> None:
    async with serving(tmp_path, engine()) as gateway:
        receipt = await gateway.receipt()
        for score in SCORES:
            body = f'{{"score": {score}, "references": ["{receipt}"]}}'
            response = await gateway.http.post("/reef/report", content=body)
            assert response.status_code == 400, score
            assert response.json()["error"]["param"] == "score"
            assert "finite number" in response.json()["error"]["message"]
        missing = await gateway.http.post("/reef/report", json={"references": [receipt]})
        assert (missing.status_code, missing.json()["error"]["param"]) == (400, "score")
        record = await gateway.record(receipt)
        assert record["state"] == "open", "nothing was stored"
        assert gateway.deps.records.counts().recorded == 0
        for score in (-1e308, 0, 3):
            assert (await gateway.report(score=score)).status_code == 200


async def test_fields_are_checked_by_name(tmp_path: Path) -> None:
    async with serving(tmp_path, engine()) as gateway:
        receipt = await gateway.receipt()
        bad: list[tuple[dict[str, Any], str]] = [
            ({"references": receipt}, "references"),
            ({"references": [receipt, receipt]}, "references"),
            ({"references": [1]}, "references"),
            ({"references": ["a b"]}, "references"),
            ({"feedback": 3}, "feedback"),
            ({"metadata": "x"}, "metadata"),
            ({"metadata": {"training": True}}, "metadata.training"),
            ({"metadata": {"training": {"eligible": "no"}}}, "metadata.training.eligible"),
            ({"agent_record_id": ""}, "agent_record_id"),
            ({"agent_record_id": "é"}, "agent_record_id"),
            ({"agent_record_id": "a" * 129}, "agent_record_id"),
            ({"scores": 1}, "scores"),
        ]
        for fields, param in bad:
            response = await gateway.http.post("/reef/report", json={"score": 1, **fields})
            assert (response.status_code, response.json()["error"]["param"]) == (400, param), fields
        nan = await gateway.http.post("/reef/report", content=b'{"score": 1, "feedback": {"a": [NaN]}}')
        assert (nan.status_code, nan.json()["error"]["param"]) == (400, "feedback")
        unknown = await gateway.report("r-unknown")
        assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "receipt_not_found")
        assert gateway.deps.records.counts().recorded == 0


async def test_the_same_id_and_content_happens_once_and_other_content_conflicts(tmp_path: Path) -> None:
    async with serving(tmp_path, engine()) as gateway:
        receipt = await gateway.receipt()
        first = await gateway.report(receipt, agent_record_id="p1", metadata={"a": 1, "b": 2})
        assert first.json() == {
            "agent_record_id": "p1",
            "scenario": "s",
            "request_type": "report",
            "trains": True,
            "reason": None,
        }
        for _ in range(2):
            again = await gateway.report(receipt, score=1, agent_record_id="p1", metadata={"b": 2, "a": 1})
            assert again.content == first.content
        other = await gateway.report(receipt, score=0.5, agent_record_id="p1", metadata={"a": 1, "b": 2})
        assert (other.status_code, other.json()["error"]["code"]) == (409, "conflict")
        assert (await gateway.report(agent_record_id=receipt)).status_code == 409
        assert gateway.deps.records.counts().queued == 1
        second = (await gateway.report(receipt)).json()
        assert (second["trains"], second["reason"]) == (False, "already_reported")


@pytest.mark.parametrize("with_id", [True, False])
async def test_fifty_posts_at_once_make_one_sample(tmp_path: Path, with_id: bool) -> None:
    async with serving(tmp_path, engine()) as gateway:
        receipt = await gateway.receipt()
        fields = {"agent_record_id": "p1"} if with_id else {}
        answers = await asyncio.gather(*(gateway.report(receipt, **fields) for _ in range(50)))
        assert {answer.status_code for answer in answers} == {200}
        assert sum(answer.json()["trains"] for answer in answers) == (50 if with_id else 1)
        assert len(gateway.deps.records.queued()) == 1


async def test_what_does_not_train_is_stored_with_its_reason(tmp_path: Path) -> None:
    async with serving(tmp_path, engine()) as gateway:
        elsewhere = await gateway.receipt(headers={"x-reef-scenario": "other"})
        one, two, three = [await gateway.receipt() for _ in range(3)]
        answers = [
            await gateway.report(),
            await gateway.report(one, metadata={"training": {"eligible": False}}),
            await gateway.report(two, three),
            await gateway.report(elsewhere),
        ]
        got = [(answer.json()["scenario"], answer.json()["trains"], answer.json()["reason"]) for answer in answers]
        assert got == [
            ("s", False, "no_references"),
            ("s", False, "ineligible"),
            ("s", False, "multi_reference"),
            ("other", False, "other_scenario"),
        ]
        assert not gateway.woken
        assert (await gateway.report(one)).json()["trains"], "an ineligible report does not use the receipt up"
        assert len(gateway.woken) == 1
        status = (await gateway.http.get("/reef/status")).json()
        assert status["drops"] == {"ineligible": 1, "multi_reference": 1, "no_references": 1, "other_scenario": 1}
        assert status["queue"]["queued"] == 1


async def test_a_report_names_a_known_scenario(tmp_path: Path) -> None:
    async with serving(tmp_path, engine()) as gateway:
        receipt = await gateway.receipt()
        body = {"score": 1, "references": [receipt]}
        for kwargs in (
            {"headers": {"x-reef-scenario": "demoo"}, "json": body},
            {"json": {**body, "scenario": "demoo"}},
        ):
            response = await gateway.http.post("/reef/report", **kwargs)  # type: ignore[arg-type]
            assert response.status_code == 404
            assert "there are: s" in response.json()["error"]["message"]
        clash = await gateway.http.post(
            "/reef/report", headers={"x-reef-scenario": "s"}, json={**body, "scenario": "demoo"}
        )
        assert clash.status_code == 400
        assert (await gateway.record(receipt))["state"] == "open"


async def test_an_arm_that_trains_nothing_keeps_reports_and_says_so(tmp_path: Path) -> None:
    async with serving(tmp_path, engine(), trains=False, group_size=4) as gateway:
        answer = (await gateway.report(await gateway.receipt())).json()
        assert (answer["trains"], answer["reason"]) == (False, "untrained_arm")
        greedy = (await gateway.report(await gateway.receipt(temperature=0))).json()
        assert greedy["reason"] == "temperature_zero", "what is wrong with the rollout itself is said first"
        assert gateway.woken == []
        contract = (await gateway.http.get("/reef/scenarios/s/contract")).json()
        assert (contract["trains"], contract["group_size"]) == (False, 4)
