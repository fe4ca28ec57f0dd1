"""GET /metrics: what Prometheus reads, checked by a small parser of its format."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import httpx
from enginefakes import ScriptedEngine, say
from gatewaykit import Gateway, release, serving

from saocli.gateway.prometheus import Family, exposition

SAMPLE = re.compile(r'([a-zA-Z_:][\w:]*)(?:\{((?:\w+="(?:[^"\\\n]|\\[\\"n])*",?)*)\})? (\S+)')
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
RECORD: dict[str, Any] = {
    "step": 1,
    "release": "s@1",
    "parent": "s@0",
    "operation": "training",
    "arm": "sao",
    "advantage": "gae",
    "noop_reason": None,
    "pg_clipfrac": 0.25,
    "critic/explained_variance": None,
    "sao/queue_age_s_mean": 1.5,
    "time/step_s": 2.0,
    "dropped/stale": 1.0,
    "scores": [1.0],
    "moments": [],
}


def parsed(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Samples by name and labels; each has its HELP and TYPE before it, once."""
    samples: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
    typed: list[str] = []
    assert text.endswith("\n")
    for line in text.splitlines():
        if line.startswith("#"):
            _, keyword, name, rest = line.split(" ", 3)
            assert keyword in ("HELP", "TYPE")
            if keyword == "TYPE":
                assert rest in ("counter", "gauge")
                assert name not in typed
                assert name.endswith("_total") == (rest == "counter")
                typed.append(name)
            continue
        found = SAMPLE.fullmatch(line)
        assert found, line
        assert found[1] == typed[-1], "a family's samples follow its head"
        key = (found[1], frozenset(LABEL.findall(found[2] or "")))
        assert key not in samples
        samples[key] = float(found[3])
    return samples


async def scraped(gateway: Gateway) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    response = await gateway.http.get("/metrics")
    assert response.status_code == 200
    assert response.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    return parsed(response.text)


def test_labels_are_escaped_and_numbers_are_whole_where_they_can_be() -> None:
    family = Family(
        name="sao_x", kind="gauge", help="Of x.", samples=[({"a": 'q"\\\n', "b": ""}, 3.0), ({}, float("nan"))]
    )
    empty = Family(name="sao_none", kind="gauge", help="Nothing.", samples=[])
    assert exposition([family, empty]) == (
        '# HELP sao_x Of x.\n# TYPE sao_x gauge\nsao_x{a="q\\"\\\\\\n",b=""} 3\nsao_x NaN\n'
    )


async def test_what_happened_is_counted(tmp_path: Path) -> None:
    def status() -> dict[str, Any]:
        return {"processes": {"trainer": {"pid": 1, "alive": True}, "engine": {"alive": False}}, "last_step": RECORD}

    async with serving(tmp_path, ScriptedEngine(lambda _: say("AB")), status=status) as gateway:
        first, second, _ = [await gateway.receipt() for _ in range(3)]
        await gateway.report(first, agent_record_id="p1")
        await gateway.report(second)
        await gateway.report()
        gateway.deps.records.lease(1, ["p1"])
        gateway.deps.releases.commit(release(1, parent="s@0"), report_ids=["p1"])
        await gateway.http.get("/nope/with/a/name")
        await gateway.http.get("/reef/scenarios/other/releases")
        samples = await scraped(gateway)

        def value(name: str, **labels: str) -> float:
            return samples[name, frozenset(labels.items())]

        assert value("sao_up") == 1
        assert (value("sao_process_up", process="trainer"), value("sao_process_up", process="engine")) == (1, 0)
        assert (value("sao_receipts_total"), value("sao_receipts_open")) == (3, 1)
        assert value("sao_reports", state="trained", reason="") == 1
        assert value("sao_reports", state="recorded", reason="no_references") == 1
        assert (value("sao_queue_reports"), value("sao_reports_trained_total")) == (1, 1)
        assert (value("sao_releases_total", operation="base"), value("sao_releases_total", operation="training")) == (
            1,
            1,
        )
        assert (value("sao_release_step"), value("sao_generations_running")) == (1, 0)
        answered = "sao_http_requests_total"
        assert value(answered, method="POST", route="/v1/chat/completions", status="200") == 3
        assert value(answered, method="POST", route="/reef/report", status="200") == 3
        assert value(answered, method="GET", route="/reef/scenarios/{scenario}/releases", status="404") == 1
        assert value(answered, method="", route="other", status="404") == 1
        assert (value("sao_step_pg_clipfrac"), value("sao_step_time_step_seconds")) == (0.25, 2)
        assert value("sao_step_queue_age_seconds_mean") == 1.5
        gauges = {name for name, _ in samples if name.startswith("sao_step_")}
        assert gauges == {
            "sao_step_step",
            "sao_step_pg_clipfrac",
            "sao_step_queue_age_seconds_mean",
            "sao_step_time_step_seconds",
        }


async def test_strangers_see_none_of_it(tmp_path: Path) -> None:
    async with (
        serving(tmp_path, ScriptedEngine(lambda _: say("AB"))) as gateway,
        httpx.AsyncClient(base_url=gateway.url) as stranger,
    ):
        for number in range(3):
            assert (await stranger.get(f"/made-up/{number}")).status_code == 401
        samples = await scraped(gateway)
        refused = [key for key in samples if key[0] == "sao_http_requests_total" and ("status", "401") in key[1]]
        assert len(refused) == 1, "no label is of a stranger's making"
        assert "test-token" not in str(samples)
