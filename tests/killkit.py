"""`sao serve` that is killed with -9, over and over, and what must hold of its run directory all the same."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sqlite3
import subprocess
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from runkit import ENV, SAO, THREADS, alive, descendants, wait_gone

from saocli.config.load import load_run
from saocli.models.resolve import resolve
from saocli.queue import SampleQueue
from saocli.store.database import Database
from saocli.store.records import Records
from saocli.store.releases import Releases
from saocli.trainer.remote import RemoteTrainer

BEARER = {"authorization": "Bearer reef-local"}
# By what their command lines say. The launcher of the trainer's ranks has the same file; it ends with any of them.
TRAINER, ENGINE = "logs/trainer.json", "saocli.engine.embedded.server"
VICTIMS = ("trainer", "engine", "process", "all")


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@dataclass
class Life:
    """One run on one port, through as many processes as it takes. `command` starts it, `--resume latest` goes on."""

    cwd: Path
    tokens: Sequence[str]
    command: Sequence[str] = (*SAO, "serve")
    env: Mapping[str, str] = field(default_factory=dict)
    port: int = field(default_factory=free_port)
    starts: int = 0
    process: subprocess.Popen[bytes] | None = None
    http: httpx.Client = field(init=False)

    def __post_init__(self) -> None:
        # A connection to a killed process is never used again.
        none_kept = httpx.Limits(max_keepalive_connections=0)
        self.http = httpx.Client(base_url=self.url, headers=BEARER, timeout=60, limits=none_kept)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def run(self) -> Path:
        return (self.cwd / "runs/latest").resolve()

    @property
    def log(self) -> Path:
        """What it printed, through all its processes."""
        return self.cwd / "serve.log"

    @property
    def lives(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def start(self) -> None:
        """Start it, or go on with what there is of it."""
        begun = (self.cwd / "runs/latest/records.db").exists()
        tokens = ("--resume", "latest") if begun else (*self.tokens, f"gateway.port={self.port}", *THREADS)
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*self.command, *tokens], cwd=self.cwd, env={**ENV, **self.env}, stdout=log, stderr=log
            )
        self.starts += 1

    def wait_healthy(self, timeout: float = 120) -> None:
        deadline = time.monotonic() + timeout
        while not self._healthy():
            assert self.lives, self.log.read_text()[-3000:]
            assert time.monotonic() < deadline, self.log.read_text()[-3000:]
            time.sleep(0.05)

    def _healthy(self) -> bool:
        try:
            return self.http.get("/healthz").status_code == 200
        except httpx.TransportError:
            return False

    def pids(self, victim: str) -> set[int]:
        """The processes that a kill of `victim` takes; none while that part is being started."""
        assert self.process is not None
        below = descendants(self.process.pid)
        if victim in ("process", "all"):
            return {self.process.pid} | (below if victim == "all" else set())
        wanted = TRAINER if victim == "trainer" else ENGINE
        return {pid for pid in below if wanted in _command(pid) and not descendants(pid)}

    def kill(self, victim: str) -> set[int]:
        """Kill it with -9; returns what was killed, and leaves no process behind where the service itself was."""
        assert self.process is not None
        pids, below = self.pids(victim), descendants(self.process.pid)
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        if victim in ("process", "all"):
            self.process.wait()
            # A child that is still importing looks for its parent once it is done.
            assert wait_gone(below, timeout=60) == set(), "an orphan"
        else:
            wait_gone(pids)
        return pids

    def end(self) -> int:
        """Stop it as a person does; returns its exit status."""
        assert self.process is not None
        if self.lives:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=120)

    def abandon(self) -> None:
        """Whatever is left of it goes."""
        if self.process is not None and self.lives:
            left = {self.process.pid} | descendants(self.process.pid)
            for pid in alive(left):
                os.kill(pid, signal.SIGKILL)
            self.process.wait()
        self.http.close()


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


def query(run: Path, sql: str, *values: Any) -> list[tuple[Any, ...]]:
    """What the run's database says, also while the run writes it."""
    with closing(sqlite3.connect(f"file:{run / 'records.db'}?mode=ro", uri=True, timeout=10)) as db:
        return db.execute(sql, values).fetchall()


def check_chain(run: Path) -> list[str]:
    """No gap, every parent linked, one head, every step written down once; returns the digests by step."""
    columns = "step, release_id, parent_release_id, current, digest, receipts, operation"
    rows = query(run, f"SELECT {columns} FROM releases ORDER BY seq")
    assert [row[0] for row in rows] == list(range(len(rows))), "a gap"
    assert [row[2] for row in rows] == [None, *(row[1] for row in rows[:-1])], "a parent that is not the one before"
    assert [row[3] for row in rows] == [0] * (len(rows) - 1) + [1], "one head, the newest"
    receipts = [receipt for row in rows for receipt in json.loads(row[5])]
    assert len(receipts) == len(set(receipts)), "a receipt in two releases"
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(1, len(rows))), "a step that is not written down once"
    assert [line["release"] for line in lines] == [row[1] for row in rows[1:]]
    assert [line["operation"] for line in lines] == [row[6] for row in rows[1:]]
    return [row[4] for row in rows]


def check_reports(run: Path, answers: Mapping[str, Mapping[str, Any]]) -> Counter[str]:
    """Every acknowledged report stands where it was answered to, once; returns how many stand where."""
    rows = query(run, "SELECT id, trains, state, reason, step, release_id FROM reports")
    found = {row[0]: row[1:] for row in rows}
    assert len(found) == len(rows), "a report stored twice"
    assert set(answers) <= set(found), f"lost: {sorted(set(answers) - set(found))}"
    receipts = dict(query(run, "SELECT release_id, receipts FROM releases"))
    references: dict[str, list[str]] = {}
    for report, receipt in query(run, "SELECT report, receipt FROM report_references ORDER BY report, position"):
        references.setdefault(report, []).append(receipt)
    standing: Counter[str] = Counter()
    for report, (trains, state, reason, step, release) in found.items():
        if report in answers:
            assert bool(trains) == answers[report]["trains"]
        standing[state if reason is None else f"{state}/{reason}"] += 1
        if state == "trained":
            assert release.endswith(f"@{step}")
            assert set(references[report]) <= set(json.loads(receipts[release])), "trained, and its release says no"
        elif state in ("dropped", "recorded"):
            assert reason, "not trained, without a reason"
    listed = sum(len(json.loads(receipt)) for receipt in receipts.values())
    trained = [report for report, row in found.items() if row[1] == "trained"]
    assert listed == sum(len(references[report]) for report in trained), "a release lists what no report trained"
    return standing


async def replayed_digests(run: Path) -> list[str]:
    """Train the recorded batches from the base model, one after another, with nothing killed; the digests by step."""
    config = load_run("config", [], conf_dir=run).config
    folder = resolve(config.model, on_progress=lambda text, part: None)
    database = Database(run / "records.db", readonly=True)
    queue = SampleQueue(
        Records(database),
        releases := Releases(database),
        scenario=config.scenario,
        batch_size=config.batch_size,
        max_staleness=config.max_staleness,
        on_drop=lambda: None,
    )
    trainer = await RemoteTrainer.start(
        config=config.trainer,
        arm=config.arm,
        model_folder=folder,
        context_length=config.context_length,
        seed=config.seed,
        log=run / "logs" / "replay.log",
    )
    try:
        digests = []
        for release in releases.list(config.scenario)[::-1]:
            if release.operation.takes_batch:
                await trainer.step(await asyncio.to_thread(queue.batch, release.step))
            digests.append(await trainer.digest())
        return digests
    finally:
        await trainer.close()
        database.close()


def greedy(http: httpx.Client) -> tuple[str, str]:
    """What the weights that serve say, log-probabilities to the bit, and which they are."""
    body = {"model": "tiny", "prompt": "abc", "max_tokens": 24, "temperature": 0, "logprobs": 1}
    answer = http.post("/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    choice = answer.json()["choices"][0]
    return json.dumps([choice["text"], choice["logprobs"]]), answer.headers["x-reef-weight-version"]


def listed(counts: Mapping[Any, int]) -> Iterable[str]:
    """`7 name`, the most first."""
    for name, count in sorted(counts.items(), key=lambda one: (-one[1], str(one[0]))):
        yield f"{count} {name if isinstance(name, str) else ' '.join(name)}"
