"""A full disk, a read-only folder, a damaged page: refused with the reason, and nothing is acknowledged."""

from __future__ import annotations

from pathlib import Path

import pytest
from enginefakes import ScriptedEngine, say
from gatewaykit import Gateway, serving
from storekit import exchange

from saocli.store.database import Database
from saocli.store.records import Records


def break_writes(gateway: Gateway, pragma: str) -> None:
    """Make SQLite itself refuse what is written from now on."""
    with gateway.deps.records._db.write(durable=False) as connection:
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
    writer = gateway.deps.records._db._writer
    assert writer is not None
    writer.execute(pragma.format(pages=pages))


@pytest.mark.parametrize(
    ("pragma", "mended", "said"),
    [
        ("PRAGMA max_page_count = {pages}", "PRAGMA max_page_count = 4294967294", "disk is full"),
        ("PRAGMA query_only = 1", "PRAGMA query_only = 0", "readonly"),
    ],
)
async def test_what_cannot_be_written_is_not_acknowledged(tmp_path: Path, pragma: str, mended: str, said: str) -> None:
    async with serving(tmp_path, ScriptedEngine(lambda _: say("A" * 100))) as gateway:
        receipt = await gateway.receipt()
        before = gateway.deps.records.counts()
        break_writes(gateway, pragma)
        feedback = "x" * 200_000  # more than what free space the file has
        report = await gateway.report(receipt, agent_record_id="p1", feedback=feedback)
        many = [await gateway.chat("y" * 100) for _ in range(40)]
        stream = await gateway.chat("y" * 100, stream=True)
        for answer in (report, many[-1]):
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
            assert answer.json()["error"]["code"] == "store_unavailable"
            assert said in answer.json()["error"]["message"]
        assert "x-reef-agent-record-id" not in many[-1].headers
        assert {answer.status_code for answer in many} <= {200, 503}
        assert "[DONE]" not in stream.text, "a stream that could not be recorded does not end as if it were"
        assert said in stream.text
        for path in ("/healthz", "/reef/status", "/reef/scenarios/s/releases", "/metrics"):
            assert (await gateway.http.get(path)).status_code == 200, "reading goes on"
        counts = gateway.deps.records.counts()
        assert (counts.queued, counts.recorded) == (before.queued, before.recorded)
        assert gateway.deps.records.receipt_state(receipt) is not None
        assert not gateway.woken
        break_writes(gateway, mended) if "page" in pragma else gateway.deps.records._db._writer.execute(mended)
        again = await gateway.report(receipt, agent_record_id="p1", feedback=feedback)
        assert again.json()["trains"], "the same report, once there is room again"
        assert len(gateway.woken) == 1


async def test_a_damaged_page_is_named_and_the_rest_is_served(tmp_path: Path) -> None:
    path = tmp_path / "records.db"
    database = Database(path)
    records = Records(database)
    records.ensure_scenario("s", at=0.0)
    for number in range(200):
        records.add_exchange(exchange(f"r{number}", text="y" * 2000))
    database.close()
    with path.open("r+b") as file:
        size = path.stat().st_size
        file.seek(size // 2)
        file.write(b"\xff" * (size // 4))
    async with serving(tmp_path, ScriptedEngine(lambda _: say("A"))) as gateway:
        page = await gateway.http.get("/reef/scenarios/s/records", params={"limit": 1000})
        assert page.status_code == 503
        error = page.json()["error"]
        assert (error["code"], "malformed" in error["message"]) == ("store_unavailable", True)
        assert (await gateway.http.get("/healthz")).status_code == 200
