"""Many clients at once against a gateway in another process, and what became of everything they were told; or one
client, many times, of a gateway in this process.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from enginefakes import ScriptedEngine, say
from gatewaykit import SCENARIO, TOKEN, make_deps

from saocli.gateway.app import make_app
from saocli.store.database import Database
from saocli.store.records import Records
from saocli.store.releases import Releases

READS = (
    "/healthz",
    "/reef/status",
    "/v1/models",
    f"/reef/scenarios/{SCENARIO}/contract",
    f"/reef/scenarios/{SCENARIO}/releases",
    f"/reef/scenarios/{SCENARIO}/records?limit=20",
)
MALFORMED: tuple[tuple[bytes, int], ...] = (
    (b'{"score": "1"}', 400),
    (b'{"score": NaN}', 400),
    (b'{"score"', 400),
    (b'{"score": 1, "references": ["nobody"]}', 404),
    (b"[]", 400),
)
RECEIPT = re.compile(rb'(?:x-reef-agent-record-id: |"agent_record_id":")(\w{26})', re.IGNORECASE)
DUPLICATES, BAD = 0.10, 0.05  # of all reports


@dataclass
class Told:
    """What the clients sent and heard."""

    receipts: list[str] = field(default_factory=list)
    trains: Counter[str] = field(default_factory=Counter)  # receipt → answers that said it trains, by report id
    statuses: Counter[tuple[str, int]] = field(default_factory=Counter)
    seconds: dict[str, list[float]] = field(default_factory=lambda: {"read": [], "report": [], "chat": []})

    def p99(self, kind: str) -> float:
        return statistics.quantiles(self.seconds[kind], n=100)[98]


@dataclass(frozen=True, kw_only=True)
class Crowd:
    """How many clients there are and what each of them does."""

    clients: int
    cycles: int  # attempts of each
    pause_s: float  # mean time between two requests of one client
    seed: int = 0


@contextmanager
def gateway(folder: Path, step_s: float) -> Iterator[tuple[str, int]]:
    """Its URL and process id; on leaving, it ends its step."""
    command = [sys.executable, str(Path(__file__).with_name("loadserver.py")), str(folder), str(step_s)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip(), process.pid
        process.stdin.close()
        assert process.wait(120) == 0
    finally:
        process.kill()
        process.wait()


class Connection:
    """A connection that is kept, and as little of HTTP as it takes: a crowd must cost less than what it visits."""

    def __init__(self, url: str) -> None:
        self._host, _, self._port = url.removeprefix("http://").partition(":")
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def request(self, method: str, path: str, body: bytes = b"") -> tuple[int, bytes, bytes]:
        """Status, head and body."""
        if self._streams is None:
            self._streams = await asyncio.open_connection(self._host, int(self._port))
        reader, writer = self._streams
        head = f"{method} {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {TOKEN}\r\ncontent-length: {len(body)}"
        writer.write(head.encode() + b"\r\n\r\n" + body)
        head_bytes = (await reader.readuntil(b"\r\n\r\n")).lower()
        length = head_bytes.partition(b"content-length: ")[2].partition(b"\r\n")[0]
        content = await reader.readexactly(int(length)) if length else await self._chunks(reader)
        return int(head_bytes.split()[1]), head_bytes, content

    async def _chunks(self, reader: asyncio.StreamReader) -> bytes:
        content = b""
        while size := int(await reader.readline(), 16):
            content += (await reader.readexactly(size + 2))[:-2]
        await reader.readline()
        return content

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()


async def play(url: str, crowd: Crowd) -> Told:
    """Every client's attempts: chat, read, report; some reports twice, some wrong."""
    told = Told()
    numbers = range(crowd.clients)
    await asyncio.gather(*(_client(url, told, crowd, random.Random(f"{crowd.seed}/{n}")) for n in numbers))
    return told


async def _client(url: str, told: Told, crowd: Crowd, rng: random.Random) -> None:
    own, second = Connection(url), Connection(url)

    async def timed(kind: str, method: str, path: str, body: bytes = b"", over: Connection = own) -> tuple[int, bytes]:
        await asyncio.sleep(rng.uniform(0.0, 2 * crowd.pause_s))
        start = time.perf_counter()
        status, head, content = await over.request(method, path, body)
        told.seconds[kind].append(time.perf_counter() - start)
        told.statuses[kind, status] += 1
        return status, head + content

    for cycle in range(crowd.cycles):
        body = {"messages": [{"role": "user", "content": f"{rng.random()}"}], "stream": rng.random() < 0.3}
        _, answer = await timed("chat", "POST", "/v1/chat/completions", json.dumps(body).encode())
        receipt = RECEIPT.findall(answer)[0].decode().upper()
        told.receipts.append(receipt)
        await timed("read", "GET", rng.choice(READS))
        if rng.random() < BAD:
            wrong, status = rng.choice(MALFORMED)
            assert (await timed("report", "POST", "/reef/report", wrong))[0] == status
        graded = {"score": float(cycle % 2), "references": [receipt], "agent_record_id": f"p-{receipt}"}
        over = (own, second) if rng.random() < DUPLICATES else (own,)
        posted = json.dumps(graded).encode()
        answers = await asyncio.gather(*(timed("report", "POST", "/reef/report", posted, one) for one in over))
        assert len({answer.partition(b"\r\n\r\n")[2] for _, answer in answers}) == 1, "a retry gets the same answer"
        told.trains[receipt] += b'"trains":true' in answers[0][1]
    own.close()
    second.close()


def check(told: Told, folder: Path, crowd: Crowd) -> None:
    """Nothing lost, nothing doubled, nothing failed."""
    assert {status for kind, status in told.statuses if kind in ("chat", "read")} == {200}
    assert {status for kind, status in told.statuses if kind == "report"} <= {200, 400, 404}
    attempts = crowd.clients * crowd.cycles
    assert len(set(told.receipts)) == attempts
    assert set(told.trains.values()) == {1}
    database = Database(folder / "records.db", readonly=True)
    records, chain = Records(database), Releases(database).list(SCENARIO)
    counts = records.counts()
    assert (counts.open, counts.dropped, counts.recorded, counts.leased) == (0, 0, 0, 0)
    assert counts.queued + counts.trained == attempts
    assert records.generations() == attempts
    trained = Counter(receipt for entry in chain for receipt in entry.receipts)
    assert max(trained.values()) == 1
    assert len(trained) == counts.trained
    assert set(trained) <= set(told.receipts)
    database.close()


def cpu_s(pid: int) -> float:
    """Seconds that a process has computed."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_mib(pid: int) -> float:
    """Memory of a process that is in RAM."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024


class Forgetful(list[Any]):
    """Keeps nothing, so that what grows is the service."""

    def append(self, item: Any) -> None:
        pass


@asynccontextmanager
async def in_process(folder: Path) -> AsyncIterator[tuple[httpx.AsyncClient, Records]]:
    """A client of the whole service, which is this process, and what it records; its engine says AB."""
    engine = ScriptedEngine(lambda _: say("AB"), requests=Forgetful())
    options = {"max_outstanding": 10**6, "on_report_accepted": lambda: None}
    deps = make_deps(Database(folder / "records.db"), engine, **options)
    headers = {"authorization": f"Bearer {TOKEN}"}
    transport = httpx.ASGITransport(make_app(deps))
    async with httpx.AsyncClient(transport=transport, base_url="http://x", headers=headers) as http:
        yield http, deps.records


async def attempts(http: httpx.AsyncClient, count: int) -> None:
    """Each is sampled and reported: two records."""
    for _ in range(count):
        answer = await http.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": "hi"}]})
        await http.post("/reef/report", json={"score": 1, "references": [answer.headers["x-reef-agent-record-id"]]})
        await asyncio.sleep(0)
