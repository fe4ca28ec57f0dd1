"""A run whose engine dies: its clients are told to come again, and it goes on."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from runkit import ENV, SAO, THREADS, Served, descendants, healthy, served, wait_gone

pytestmark = pytest.mark.slow

ENGINE = "embedded engine"


def status(running: Served) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(running.sao("status", "--json").stdout)
    return answer


async def test_a_killed_engine_costs_its_clients_another_try_and_the_run_goes_on(tmp_path: Path) -> None:
    with served(tmp_path, "conf=cpu_smoke", "trainer.critic_warmup_steps=0") as running:
        assert running.sao("attempt", "-n", "1").returncode == 0
        before = status(running)
        version, process = before["serving"]["weight_version"], before["processes"][ENGINE]
        assert (before["serving"]["step"], process["restarts"]) == (3, 0)
        headers = {"authorization": "Bearer reef-local"}
        async with httpx.AsyncClient(base_url=running.url, headers=headers, timeout=60) as http:
            started = [asyncio.Event() for _ in range(4)]

            async def whole() -> httpx.Response:
                return await http.post("/v1/completions", json={"prompt": "x", "max_tokens": 240})

            async def streamed(first: asyncio.Event) -> list[str]:
                body = {"prompt": "x", "max_tokens": 240, "stream": True}
                events = []
                async with http.stream("POST", "/v1/completions", json=body) as response:
                    async for line in response.aiter_lines():
                        events += [line.removeprefix("data: ")] if line else []
                        first.set()
                return events

            wholes = [asyncio.create_task(whole()) for _ in started]
            streams = [asyncio.create_task(streamed(first)) for first in started]
            for first in started:
                await first.wait()
            os.kill(process["pid"], signal.SIGKILL)
            killed = time.monotonic()
            answers, events = await asyncio.gather(*wholes), await asyncio.gather(*streams)
            assert time.monotonic() - killed < 5
            health = await http.get("/healthz")
            assert (health.status_code, health.json()["reason"]) == (503, "the engine is restarting")
            again = await whole()
            for answer in [*(a for a in answers if a.status_code != 200), health, again]:
                assert answer.status_code == 503
                assert int(answer.headers["retry-after"]) >= 1
            assert again.json()["error"]["type"] == "server_error"
            ends = [json.loads(said[-1])["error"]["code"] if said[-1] != "[DONE]" else "done" for said in events]
            assert set(ends) <= {"engine_restarting", "done"}
            assert "engine_restarting" in ends
            # The same client as a driven run's, while there is no engine.
            attempts = await asyncio.to_thread(running.sao, "attempt", "-n", "1", "--json")
            assert attempts.returncode == 0, attempts.stderr
            assert {json.loads(line)["state"] for line in attempts.stdout.splitlines()} == {"trained"}
            records = (await http.get("/reef/scenarios/sao-smoke/records?limit=200")).json()["records"]
            cut = [record for record in records if record.get("why_not") == "aborted"]
            assert len(cut) == ends.count("engine_restarting")
            assert not any(record["trainable"] for record in cut)
        after = status(running)
        assert after["health"]["ok"]
        assert after["serving"]["step"] == 6
        assert after["processes"][ENGINE]["restarts"] == 1
        assert after["processes"][ENGINE]["pid"] != process["pid"]
        running.process.send_signal(signal.SIGTERM)
        output = running.process.communicate(timeout=60)[0]
        assert running.process.returncode == 0
        line = f"the {ENGINE} was killed by SIGKILL while serving: starting it again with {version} (1 of 3 in a row)"
        assert output.count(line) == 1
        assert line in (running.run / "logs" / "engine.log").read_text()


def test_of_two_engines_one_may_die_in_a_driven_run(tmp_path: Path) -> None:
    conf = ("engine.replicas=2", "tasks.count=1", "tasks.attempts=6", "trainer.critic_warmup_steps=0")
    process = subprocess.Popen(
        [*SAO, "serve", "conf=cpu_smoke", "--drive", "gateway.port=0", *THREADS, *conf],
        cwd=tmp_path,
        env=ENV,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    run = healthy(process, tmp_path).parent
    below = descendants(process.pid)
    engine = next(
        pid for pid in below if re.search(rb"embedded.server.*engine-2", Path(f"/proc/{pid}/cmdline").read_bytes())
    )
    os.kill(engine, signal.SIGKILL)
    output = process.communicate(timeout=120)[0]
    assert process.returncode == 0, output
    assert "6 rollouts trained · 0 queued on disk · 0 dropped" in output
    assert "2 × cpu" in output
    assert "the embedded engine 2 was killed by SIGKILL while serving: starting it again" in output
    assert sorted(path.name for path in (run / "logs").glob("engine*.log")) == [
        "engine-1.log",
        "engine-2.log",
    ]
    assert wait_gone(below) == set()
