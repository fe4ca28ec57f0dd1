"""A service whose parts are killed with -9 at random moments while clients sample and report: nothing lost or doubled.

Run: python tests/bench/random_kills.py [kills] [seed]

Each kill hits the trainer, the engine, the whole `sao serve` process, or every process of the run at once. Some wait
for the run to be healthy, some do not, so that what is being restored is killed too. The clients repeat reports, before
and after kills; the run directory must hold every acknowledged report once, trained or with a reason, on a chain
without a gap, whose every digest an undisturbed trainer reaches from the recorded batches.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

sys.path.insert(0, str(Path(__file__).parents[1]))

from killkit import BEARER, Life, check_chain, check_reports, listed, query, replayed_digests

CONF = (
    "conf=cpu_smoke",
    "trainer.critic_warmup_steps=2",
    "trainer.lr_decay=linear",
    "trainer.lr_decay_steps=2000",
    "releases.checkpoint_every=3",
    "max_staleness=2",
    "trainer.restarts=100",
    "engine.restarts=10",
)
SHARES = {"trainer": 50, "engine": 36, "process": 8, "all": 6}
CLIENTS = 2


@dataclass
class Crowd:
    """Clients that sample, report, and report again, whatever becomes of the service."""

    url: str
    dice: random.Random
    answers: dict[str, dict[str, Any]] = field(default_factory=dict)  # acknowledged, by report id
    statuses: Counter[int] = field(default_factory=Counter)
    broken: int = 0  # requests without an answer
    repeats: int = 0  # reports sent again after they were acknowledged
    sampling: int = 0  # generations that run now
    over: bool = False
    started: int = 0

    async def play(self) -> None:
        """Until it is `over`."""
        async with httpx.AsyncClient(base_url=self.url, headers=BEARER, timeout=60) as http:
            while not self.over:
                self.started += 1
                await self._attempt(http, self.started)

    async def _attempt(self, http: httpx.AsyncClient, number: int) -> None:
        tokens = self.dice.choice((4, 8, 8, 120))
        self.sampling += 1
        body = {"prompt": f"abc {number % 7}", "max_tokens": tokens, "seed": number}
        receipt = (await self._post(http, "/v1/completions", body)).headers["x-reef-agent-record-id"]
        self.sampling -= 1
        await asyncio.sleep(self.dice.uniform(0, 1))
        report = {"agent_record_id": f"r{number}", "score": number % 4 / 3, "references": [receipt]}
        await self._report(http, report)
        if self.dice.random() < 0.4:
            await asyncio.sleep(self.dice.uniform(0, 4))
            self.repeats += 1
            await self._report(http, report)
        if self.dice.random() < 0.1:
            other = report | {"agent_record_id": f"other{number}"}
            await self._report(http, other)
            assert not self.answers[f"other{number}"]["trains"], "a receipt that would train twice"

    async def _report(self, http: httpx.AsyncClient, body: dict[str, Any]) -> None:
        answer = (await self._post(http, "/reef/report", body)).json()
        assert self.answers.setdefault(body["agent_record_id"], answer) == answer, "another answer to the same report"

    async def _post(self, http: httpx.AsyncClient, path: str, body: dict[str, Any]) -> httpx.Response:
        """Until it is answered with 200."""
        while True:
            try:
                response = await http.post(path, json=body)
            except httpx.TransportError:
                self.broken += 1
            else:
                self.statuses[response.status_code] += 1
                if response.status_code == 200:
                    return response
                assert response.status_code in (429, 503), f"{path}: {response.status_code} {response.text}"
            await asyncio.sleep(0.1)


@dataclass
class Killer:
    """Kills, and starts the run again when its process is gone."""

    life: Life
    crowd: Crowd
    dice: random.Random
    kills: Counter[tuple[str, str]] = field(default_factory=Counter)  # by victim and phase
    ended: int = 0  # runs that gave up on a part and said so

    async def rage(self, kills: int) -> None:
        while self.kills.total() < kills:
            if not self.life.lives:
                self.life.start()
            if self.dice.random() < 0.25:
                await self._healthy()
            await asyncio.sleep(self.dice.uniform(0, 2.5))
            (victim,) = self.dice.choices(list(SHARES), list(SHARES.values()))
            if not self.life.lives:
                self.ended += 1
                continue
            if self.life.pids(victim):
                self.kills[victim, self._phase()] += 1
                await asyncio.to_thread(self.life.kill, victim)
                if self.kills.total() % 10 == 0:
                    print(f"{self.kills.total()} kills · {time.perf_counter() - began:.0f} s", flush=True)

    async def settle(self) -> None:
        """No more kills: let the clients end, and every report come to its end."""
        if not self.life.lives:
            self.life.start()
        self.crowd.over = True
        deadline = time.monotonic() + 300
        waiting = "SELECT count(*) FROM reports WHERE state IN ('queued', 'leased')"
        while self.crowd.sampling or not await self._healthy() or query(self.life.run, waiting)[0][0]:
            assert time.monotonic() < deadline, "reports that nobody trains"
            await asyncio.sleep(0.5)

    async def _healthy(self) -> bool:
        """Once it is, with every part there, or has ended."""
        while self.life.lives:
            serves: bool = await asyncio.to_thread(self._serves)
            if serves and self.life.pids("trainer"):
                return True
            await asyncio.sleep(0.2)
        return False

    def _serves(self) -> bool:
        try:
            status = self.life.http.get("/reef/status").json()
        except httpx.TransportError:
            return False
        return bool(status["health"]["ok"]) and status["phase"] in ("waiting", "training")

    def _phase(self) -> str:
        """What the run directory and the processes say it is at."""
        run, life = self.life.run, self.life
        if not (run / "service.json").exists() or not (run / "records.db").exists():
            return "starting"
        for part in ("trainer", "engine"):
            if not life.pids(part):
                return f"restarting-{part}"
        states = dict(query(run, "SELECT state, count(*) FROM reports GROUP BY state"))
        partial = {folder.name for folder in run.glob("releases/*/.*.partial")}
        if states.get("leased"):
            step = query(run, "SELECT max(step) FROM releases")[0][0] + 1
            made = {folder.name for folder in run.glob(f"releases/{step:06d}/*")}
            if ".state.partial" in partial:
                return "saving"
            return "exporting" if partial else "publishing" if "weights" in made else "training"
        if states.get("queued"):
            return "accepted"
        return "sampling" if self.crowd.sampling else "waiting"


async def main(kills: int, seed: int, cwd: Path) -> None:
    life = Life(cwd, CONF)
    crowd = Crowd(life.url, random.Random(seed))
    killer = Killer(life, crowd, random.Random(seed + 1))
    life.start()
    clients = [asyncio.create_task(crowd.play()) for _ in range(CLIENTS)]
    try:
        rage = asyncio.create_task(killer.rage(kills))
        # A client that fails ends it all.
        await asyncio.wait({rage, *clients}, return_when=asyncio.FIRST_COMPLETED)
        for task in (rage, *clients):
            if task.done():
                task.result()
        await killer.settle()
        await asyncio.gather(*clients)
        await killer.settle()
        assert life.end() == 0
    finally:
        for task in (rage, *clients):
            task.cancel()
        life.abandon()
    show(killer, check_chain(life.run), await replayed_digests(life.run))


def show(killer: Killer, digests: list[str], replayed: list[str]) -> None:
    """Every count, once everything holds."""
    life, crowd = killer.life, killer.crowd
    standing = check_reports(life.run, crowd.answers)
    assert digests == replayed, "an undisturbed trainer comes to other weights"
    said = life.log.read_text()
    assert "digest DIFFERS" not in said, "a restored trainer that holds other weights"
    restored = said.count(", digest equal")
    by_victim: Counter[str] = Counter()
    by_phase: Counter[str] = Counter()
    for (victim, phase), count in killer.kills.items():
        by_victim[victim] += count
        by_phase[phase] += count
    print(f"{killer.kills.total()} kills in {time.perf_counter() - began:.0f} s: {' · '.join(listed(by_victim))}")
    print(f"  at {' · '.join(listed(by_phase))}")
    print(f"  each {' · '.join(listed(killer.kills))}")
    print(f"{life.starts - 1} times --resume · {said.count('starting it again')} parts started again by the service")
    print(f"{restored} trainers restored, each with an equal digest · {killer.ended} runs gave up on a part")
    statuses = Counter({str(status): count for status, count in crowd.statuses.items()})
    print(f"{statuses.total()} answers ({' · '.join(listed(statuses))})")
    print(f"{crowd.broken} requests broken off · {crowd.repeats} reports repeated")
    print(f"{len(crowd.answers)} reports acknowledged: {' · '.join(listed(standing))} · 0 lost · 0 doubled")
    print(f"chain of {len(digests)} releases, {len(set(digests))} digests, all equal to an undisturbed run's")


if __name__ == "__main__":
    given = [int(argument) for argument in sys.argv[1:]]
    began = time.perf_counter()
    folder = Path(tempfile.mkdtemp(prefix="sao-kills-"))
    print(f"in {folder}, which is removed once everything holds", flush=True)
    asyncio.run(main(given[0] if given else 200, given[1] if given[1:] else 0, folder))
    shutil.rmtree(folder)
