"""A live service, used from outside: HTTP, the official OpenAI client, and the other commands."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest
from runkit import ENV, SAO, THREADS, Served, descendants, sao, served, wait_gone
from transformers import AutoModelForCausalLM

pytestmark = pytest.mark.slow

BEARER = {"Authorization": "Bearer reef-local"}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("serving"), "conf=cpu_smoke") as running:
        yield running


def test_an_attempt_then_a_report_make_a_release(service: Served) -> None:
    made = service.sao("attempt", "--prompt", "2+2?", "--no-report", "--json")
    assert made.returncode == 0, made.stderr
    attempt = json.loads(made.stdout)
    assert attempt["receipt"]
    assert attempt["score"] is None
    done = service.sao("report", attempt["receipt"], "--score", "1.0", "--wait", "--json")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["state"] == "trained"
    listed = json.loads(service.sao("releases", "--json").stdout)["releases"]
    assert listed[0]["release_id"] == answer["release_id"]
    assert listed[0]["receipts"] == [attempt["receipt"]]
    assert [entry["current"] for entry in listed] == [True] + [False] * (len(listed) - 1)


def test_curl_sees_the_chain(service: Served) -> None:
    url = f"{service.url}/reef/scenarios/sao-smoke/releases"
    assert httpx.get(url).status_code == 401
    answer = httpx.get(url, headers=BEARER).json()
    assert answer["scenario"] == "sao-smoke"
    assert sum(entry["current"] for entry in answer["releases"]) == 1


def test_the_official_client_reads_answers_strictly(service: Served) -> None:
    client = openai.OpenAI(
        base_url=f"{service.url}/v1", api_key="reef-local", _strict_response_validation=True, max_retries=0
    )
    messages = [{"role": "user", "content": "Say: abc"}]
    whole = client.chat.completions.with_raw_response.create(model="tiny", messages=messages, max_tokens=6, seed=7)  # type: ignore[call-overload]
    completion = whole.parse()
    assert whole.headers["x-reef-agent-record-id"]
    assert whole.headers["x-reef-weight-version"].startswith("sao-smoke@")
    chunks = list(
        client.chat.completions.create(model="tiny", messages=messages, max_tokens=6, seed=7, stream=True)  # type: ignore[call-overload]
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == completion.choices[0].message.content
    assert client.models.list().data[0].id == "tiny"


def test_conf_tasks_are_attempted_and_trained(service: Served) -> None:
    done = service.sao("attempt", "-n", "2", "tasks.count=1", "--json")
    assert done.returncode == 0, done.stderr
    attempts = [json.loads(line) for line in done.stdout.splitlines()]
    assert [attempt["number"] for attempt in attempts] == [1, 2]
    assert all(attempt["state"] == "trained" and attempt["release_id"] for attempt in attempts)


def test_refusals_name_the_cause_and_the_right_code(service: Served) -> None:
    receipt = json.loads(service.sao("attempt", "--prompt", "x", "--json").stdout)["receipt"]
    nan = service.sao("report", receipt, "--score", "nan")
    assert nan.returncode == 4
    assert "score must be a finite number, got nan" in nan.stderr
    assert receipt in nan.stderr
    for body, field in [
        ({"score": True}, "score"),
        ({"score": "1"}, "score"),
        ({"score": 1, "references": "x"}, "references"),
    ]:
        answer = httpx.post(f"{service.url}/reef/report", headers=BEARER, json={"references": [receipt], **body})
        assert answer.status_code == 400
        assert field in answer.json()["error"]["message"]
    unknown = service.sao("report", "01UNKNOWN", "--score", "1")
    assert unknown.returncode == 4
    assert "01UNKNOWN" in unknown.stderr
    assert service.sao("report", receipt, "--score", "0.5", "--wait").returncode == 0
    twice = service.sao("report", receipt, "--score", "0.5", "--json")
    assert twice.returncode == 0
    assert json.loads(twice.stdout)["reason"] == "already_reported"
    wrong = service.sao("status", env={"SAO_TOKEN": "wrong"})
    assert wrong.returncode == 4
    assert "wrong" not in wrong.stderr.replace("wrong token", "")
    long = httpx.post(
        f"{service.url}/v1/chat/completions",
        headers=BEARER,
        json={"model": "tiny", "messages": [{"role": "user", "content": "x" * 2000}]},
    )
    assert long.status_code == 400
    assert long.json()["error"]["code"] == "context_length_exceeded"


def test_status_watch_show_and_export(service: Served, tmp_path: Path) -> None:
    assert service.sao("attempt", "-n", "1", "tasks.count=1").returncode == 0
    status = json.loads(service.sao("status", "--json").stdout)
    assert status["scenario"] == "sao-smoke"
    assert all(part["alive"] for part in status["processes"].values())
    head = json.loads(service.sao("releases", "--json").stdout)["releases"][0]
    shown = json.loads(service.sao("releases", "show", head["release_id"], "--json").stdout)
    assert shown["digest"] == head["digest"]
    done = service.sao("releases", "export", head["release_id"], str(tmp_path / "model"))
    assert done.returncode == 0, done.stderr
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    assert model.num_parameters() > 1_000_000


def test_stop_ends_everything(tmp_path: Path) -> None:
    with served(tmp_path, "conf=cpu_smoke") as running:
        below = descendants(running.process.pid)
        assert len(below) >= 3
        done = running.sao("stop")
        assert done.returncode == 0, done.stderr
        running.process.communicate(timeout=30)
        assert running.process.returncode == 0
        assert wait_gone(below) == set()


def test_detach_returns_once_healthy(tmp_path: Path) -> None:
    done = sao("serve", "conf=cpu_smoke", "gateway.port=0", *THREADS, "--detach", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    service = json.loads(done.stdout)
    below = descendants(service["pid"])
    assert httpx.get(f"{service['url']}/healthz").json() == {"ok": True}
    second = sao("stop", cwd=tmp_path)
    assert second.returncode == 0, second.stderr
    assert wait_gone({service["pid"], *below}) == set()


def test_while_it_starts_it_says_so(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen(
        [*SAO, "serve", "conf=cpu_smoke", f"gateway.port={port}", *THREADS],
        cwd=tmp_path,
        env=ENV,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    seen: dict[str, str] = {}
    try:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            with contextlib.suppress(httpx.TransportError):
                health = httpx.get(f"http://127.0.0.1:{port}/healthz")
                if health.status_code == 200:
                    break
                seen[health.json()["reason"]] = health.headers["retry-after"]
                chat = {"model": "tiny", "messages": [{"role": "user", "content": "x"}]}
                early = httpx.post(f"http://127.0.0.1:{port}/v1/chat/completions", headers=BEARER, json=chat)
                assert early.status_code in (200, 503)
            time.sleep(0.1)
        assert "starting the engine" in seen
        assert set(seen) <= {"starting the engine", "starting the trainer"}  # at once, and either may be first
    finally:
        process.terminate()
        process.wait(60)


def test_detach_shows_why_a_start_failed(tmp_path: Path) -> None:
    done = sao("serve", "conf=cpu_smoke", "gateway.port=0", "engine.python=/bin/false", "--detach", cwd=tmp_path)
    assert done.returncode == 1
    assert "ended with status 1" in done.stderr
