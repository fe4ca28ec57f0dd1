"""Names that clients give: which are taken, which are refused by field, and that none is ever part of a path."""

from __future__ import annotations

from pathlib import Path

import pytest
from enginefakes import ScriptedEngine, say
from gatewaykit import serving

from saocli.config.load import load_run
from saocli.errors import ConfigError

BAD_NAMES = ["../x", "a/b", "..", ".hidden", "a b", "a\tb", "a;b", "%2e%2e", "x" * 65, "-a", "a\\b"]
LONG_TAG = f"x-reef-tag-{'t' * 65}"
BAD_IDS = [name for name in BAD_NAMES if len(name) != 65] + ["x" * 129]


def engine() -> ScriptedEngine:
    return ScriptedEngine(lambda _: say("A"))


async def test_bad_names_are_refused_by_field_and_leave_nothing(tmp_path: Path) -> None:
    async with serving(tmp_path, engine()) as gateway:
        before = {path.name for path in tmp_path.rglob("*")}
        for name in BAD_NAMES:
            for header, param in (
                ("x-reef-scenario", "scenario"),
                (f"x-reef-tag-{'t' * 65}", f"x-reef-tag-{'t' * 65}"),
            ):
                answer = await gateway.chat(headers={header: name})
                assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), name
            made = await gateway.http.post("/reef/scenarios", json={"scenario": name})
            assert (made.status_code, made.json()["error"]["param"]) == (400, "scenario")
            report = await gateway.report(scenario=name)
            assert (report.status_code, report.json()["error"]["param"]) == (400, "scenario")
            report = await gateway.http.post("/reef/report", json={"score": 1}, headers={"x-reef-scenario": name})
            assert (report.status_code, report.json()["error"]["param"]) == (400, "x-reef-scenario")
        for name in BAD_IDS:
            answer = await gateway.chat(headers={"x-sao-session": name})
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, "x-sao-session"), name
            for fields, param in (
                ({"agent_record_id": name}, "agent_record_id"),
                ({"references": [name]}, "references"),
            ):
                report = await gateway.http.post("/reef/report", json={"score": 1, **fields})
                assert (report.status_code, report.json()["error"]["param"]) == (400, param), name
        long = await gateway.chat(headers={"x-reef-tag-a": "v" * 257})
        assert (long.status_code, long.json()["error"]["param"]) == (400, "x-reef-tag-a")
        many = await gateway.chat(headers={f"x-reef-tag-{number}": "v" for number in range(17)})
        assert many.status_code == 400
        for path in ("/reef/scenarios/..%2f..%2fetc/releases", "/reef/scenarios/%00/records"):
            assert (await gateway.http.get(path)).status_code == 404
        assert gateway.deps.records.scenarios() == ["s"]
        assert gateway.deps.records.generations() == 0
        assert {path.name for path in tmp_path.rglob("*")} == before


async def test_good_names_go_through(tmp_path: Path) -> None:
    async with serving(tmp_path, engine()) as gateway:
        headers = {"x-reef-scenario": "A.b_c-" + "d" * 58, "x-sao-session": "s:1", "x-reef-tag-Task.1": "any text ~"}
        answer = await gateway.chat(headers=headers)
        assert answer.status_code == 200
        entry = gateway.deps.records.entry(answer.headers["x-reef-agent-record-id"])
        assert entry is not None
        assert (entry.session, dict(entry.tags)) == ("s:1", {"task.1": "any text ~"})


@pytest.mark.parametrize("name", ["a b", "../x", "x" * 60, "''"])
def test_a_conf_cannot_name_a_scenario_that_no_request_could(name: str) -> None:
    with pytest.raises(ConfigError, match="scenario is"):
        load_run("cpu_smoke", [f"scenario='{name}'" if name != "''" else "scenario=''"], detect=lambda: 0)
