"""Scenarios, releases, records, status; and that reading never waits for what is slow."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from enginefakes import ScriptedEngine, say
from gatewaykit import release, serving


def engine() -> ScriptedEngine:
    return ScriptedEngine(lambda _: say("AB"))


async def test_scenarios_are_created_on_first_use_or_by_request(tmp_path: Path) -> None:
    async with serving(tmp_path, engine()) as gateway:
        await gateway.chat(headers={"x-reef-scenario": "demo"})
        made = await gateway.http.post("/reef/scenarios", json={"scenario": "eval"})
        assert (made.status_code, made.json()) == (201, {"scenario": "eval", "trains": False})
        assert (await gateway.http.post("/reef/scenarios", json={"scenario": "eval"})).status_code == 200
        listed = (await gateway.http.get("/reef/scenarios")).json()["scenarios"]
        assert [(entry["scenario"], entry["trains"]) for entry in listed] == [
            ("s", True),
            ("demo", False),
            ("eval", False),
        ]
        assert (await gateway.http.post("/reef/scenarios", json={"scenario": "a/b"})).status_code == 400
        assert (await gateway.http.post("/reef/scenarios", json={"name": "x"})).status_code == 400


async def test_a_deployment_may_forbid_new_scenarios(tmp_path: Path) -> None:
    async with serving(tmp_path, engine(), create_scenarios=False) as gateway:
        response = await gateway.chat(headers={"x-reef-scenario": "demo"})
        assert response.status_code == 404
        assert "there are: s" in response.json()["error"]["message"]
        assert (await gateway.http.post("/reef/scenarios", json={"scenario": "demo"})).status_code == 403
        assert (await gateway.chat()).status_code == 200


async def test_unknown_scenarios_are_not_empty_ones(tmp_path: Path) -> None:
    async with serving(tmp_path, engine()) as gateway:
        for path in ("contract", "releases", "records"):
            response = await gateway.http.get(f"/reef/scenarios/demoo/{path}")
            assert response.status_code == 404
            assert "there are: s" in response.json()["error"]["message"]


async def test_releases_contract_and_models_show_the_head(tmp_path: Path) -> None:
    async with serving(tmp_path, engine(), batch_size=4) as gateway:
        gateway.deps.releases.commit(release(1, parent="s@0", metrics={"reward/mean": None}), report_ids=())
        chain = (await gateway.http.get("/reef/scenarios/s/releases")).json()
        assert chain["scenario"] == "s"
        assert [(entry["step"], entry["current"]) for entry in chain["releases"]] == [(1, True), (0, False)]
        assert set(chain["releases"][0]) == {
            *("release_id", "scenario", "step", "operation", "current", "parent_release_id", "weight_version", "arm"),
            *("created_at", "receipts", "metrics", "checkpoint", "digest"),
        }
        contract = (await gateway.http.get("/reef/scenarios/s/contract")).json()
        assert (contract["trains"], contract["batch_size"]) == (True, 4)
        (model,) = (await gateway.http.get("/v1/models")).json()["data"]
        assert (model["id"], model["release"]["weight_version"]) == ("tiny", "s@1")
        status = (await gateway.http.get("/reef/status")).json()
        assert (status["phase"], status["serving"]["step"]) == ("idle", 1)
        assert "test-token" not in str(status)


async def test_numbers_json_cannot_carry_are_null(tmp_path: Path) -> None:
    async with serving(
        tmp_path, engine(), status=lambda: {"last": {"ev": float("nan"), "x": [float("-inf")]}}
    ) as gateway:
        assert (await gateway.http.get("/reef/status")).json()["last"] == {"ev": None, "x": [None]}


async def test_records_are_paged_without_a_hole(tmp_path: Path) -> None:
    async with serving(tmp_path, engine()) as gateway:
        receipts = [await gateway.receipt() for _ in range(3)]
        await gateway.report(receipts[0], agent_record_id="p1", feedback={"why": "x"})
        seen, after = [], 0
        while after is not None:
            params = {"after": after, "limit": 2}
            page = (await gateway.http.get("/reef/scenarios/s/records", params=params)).json()
            seen += page["records"]
            after = page["next"]
        assert [entry["agent_record_id"] for entry in seen] == [*receipts, "p1"]
        assert [entry["state"] for entry in seen] == ["queued", "open", "open", "queued"]
        assert (seen[-1]["references"], seen[-1]["feedback"]) == ([receipts[0]], {"why": "x"})
        for name, value in (("limit", "0"), ("limit", "x"), ("after", "-1"), ("wait", "nan")):
            response = await gateway.http.get("/reef/scenarios/s/records", params={name: value})
            assert (response.status_code, response.json()["error"]["param"]) == (400, name)


@pytest.mark.alone
async def test_waiting_for_a_receipt_ends_when_it_is_trained(tmp_path: Path) -> None:
    async with serving(tmp_path, engine()) as gateway:
        receipt = await gateway.receipt()
        await gateway.report(receipt, agent_record_id="p1")
        start = time.perf_counter()
        assert (await gateway.record(receipt, wait=0.2))["state"] == "queued"
        assert 0.15 < time.perf_counter() - start < 1.0
        waiting = asyncio.create_task(gateway.record(receipt, wait=30))
        await asyncio.sleep(0.1)
        gateway.deps.changes.notify()
        await asyncio.sleep(0.05)
        assert not waiting.done()
        gateway.deps.records.lease(1, ["p1"])
        gateway.deps.releases.commit(release(1, parent="s@0"), report_ids=["p1"])
        await asyncio.to_thread(gateway.deps.changes.notify)
        record = await asyncio.wait_for(waiting, 1)
        assert (record["state"], record["release_id"], record["step"]) == ("trained", "s@1", 1)
        unknown = await gateway.http.get("/reef/scenarios/s/records", params={"receipt": "nope", "wait": 30})
        assert unknown.status_code == 404


async def test_waiting_for_an_unreported_receipt_ends_with_a_report_that_never_trains(tmp_path: Path) -> None:
    async with serving(tmp_path, engine()) as gateway:
        receipt = await gateway.receipt()
        waiting = asyncio.create_task(gateway.record(receipt, wait=30))
        await asyncio.sleep(0.05)
        await gateway.report(receipt, metadata={"training": {"eligible": False}})
        record = await asyncio.wait_for(waiting, 1)
        assert (record["state"], record["reason"]) == ("recorded", "ineligible")


@pytest.mark.alone
async def test_reads_and_reports_do_not_wait_for_generations_or_waiters(tmp_path: Path) -> None:
    quick = iter([say("A")])
    slow = ScriptedEngine(lambda _: next(quick, say("A" * 200, delay_s=0.01)))
    async with serving(tmp_path, slow) as gateway:
        receipt = await gateway.receipt()
        busy = [asyncio.create_task(gateway.chat(stream=True)) for _ in range(32)]
        busy += [asyncio.create_task(gateway.record(receipt, wait=1.5)) for _ in range(32)]
        await asyncio.sleep(0.3)
        for path in ("/healthz", "/reef/status", "/reef/scenarios/s/releases", "/v1/models"):
            start = time.perf_counter()
            assert (await gateway.http.get(path)).status_code == 200
            assert time.perf_counter() - start < 0.2, path
        start = time.perf_counter()
        assert (await gateway.report(receipt)).json()["trains"]
        assert time.perf_counter() - start < 0.2
        assert not any(task.done() for task in busy)
        await asyncio.gather(*busy)


async def test_reads_do_not_wait_for_writes_that_wait_for_the_disk(tmp_path: Path) -> None:
    async with serving(tmp_path, engine()) as gateway:
        receipt = await gateway.receipt()
        with gateway.deps.records._db.write(durable=True):
            busy = [asyncio.create_task(gateway.chat()) for _ in range(20)]
            busy += [asyncio.create_task(gateway.report(receipt)) for _ in range(20)]
            await asyncio.sleep(1.0)
            for path in ("/healthz", "/reef/status", "/reef/scenarios/s/releases", "/v1/models", "/metrics"):
                # Behind the writes they would wait for as long as this block lasts.
                assert (await asyncio.wait_for(gateway.http.get(path), 3.0)).status_code == 200, path
            assert not any(task.done() for task in busy)
        assert {answer.status_code for answer in await asyncio.gather(*busy)} == {200}
