"""Back-pressure: rollouts that no step could take are not begun, and nothing ever waits for ever."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

from enginefakes import ScriptedEngine, say
from gatewaykit import Gateway, base_release, release, serving
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from storekit import exchange, report

from saocli.config.load import load_run
from saocli.gateway.admission import Admission, Room
from saocli.gateway.errors import ApiError
from saocli.store.database import Database
from saocli.store.records import Records
from saocli.store.releases import Releases

TTL_S = 10.0


def engine() -> ScriptedEngine:
    return ScriptedEngine(lambda _: say("AB"))


async def train(gateway: Gateway, step: int) -> None:
    """What the conductor does with everything that waits."""
    ids = [entry.report.id for entry in gateway.deps.records.queued()]
    gateway.deps.records.lease(step, ids)
    gateway.deps.releases.commit(release(step, parent=f"s@{step - 1}"), report_ids=ids)


async def test_one_rollout_too_many_is_told_the_numbers(tmp_path: Path) -> None:
    scripted = engine()
    async with serving(tmp_path, scripted, max_outstanding=3) as gateway:
        first, second, third = [await gateway.receipt() for _ in range(3)]
        await gateway.report(first)
        for fields in ({}, {"stream": True}):
            refused = await gateway.chat(**fields)
            assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
            error = refused.json()["error"]
            assert error["code"] == "too_many_outstanding"
            assert "3 rollouts are outstanding, of at most 3" in error["message"]
            assert "0 running, 2 without a report, 1 queued, 0 in a step" in error["message"]
        assert len(scripted.requests) == 3, "nothing was sampled for nothing"
        await train(gateway, 1)
        await gateway.receipt()
        assert (await gateway.chat()).status_code == 429, "two are open, and one of the new weights"
        await gateway.report(second, metadata={"training": {"eligible": False}})
        await gateway.receipt()
        await gateway.report(third)
        assert (await gateway.chat()).status_code == 429


async def test_what_does_not_train_is_never_held_back(tmp_path: Path) -> None:
    async with serving(tmp_path, engine(), max_outstanding=1) as gateway:
        await gateway.receipt()
        assert (await gateway.chat()).status_code == 429
        others = ({"temperature": 0}, {"top_p": 0.9}, {"n": 2}, {"headers": {"x-reef-scenario": "s-eval"}})
        for fields in others:
            for _ in range(2):
                assert (await gateway.chat(**fields)).status_code == 200, fields
    async with serving(tmp_path, engine(), max_outstanding=1, trains=False) as gateway:
        assert [(await gateway.chat()).status_code for _ in range(3)] == [200, 200, 200]


async def test_a_receipt_that_is_never_reported_counts_for_a_while(tmp_path: Path) -> None:
    now = [1000.0]
    async with serving(tmp_path, engine(), max_outstanding=1, receipt_ttl_s=60.0, clock=lambda: now[0]) as gateway:
        receipt = await gateway.receipt()
        now[0] = 1059.0
        assert (await gateway.chat()).status_code == 429
        now[0] = 1061.0
        assert (await gateway.chat()).status_code == 200
        assert (await gateway.report(receipt)).json()["trains"], "late, and still of use"


async def test_a_clock_that_is_set_back_holds_nobody_up(tmp_path: Path) -> None:
    """Receipts count for their time from then on, not until the clock has come as far again."""
    now = [9000.0]
    limits = {"max_outstanding": 2, "receipt_ttl_s": 60.0, "clock": lambda: now[0]}
    async with serving(tmp_path, engine(), **limits) as gateway:
        await gateway.receipt()
        now[0] = 1000.0
        await gateway.receipt()
        assert (await gateway.chat()).status_code == 429
        now[0] = 1061.0
        await gateway.receipt()
        await gateway.receipt()
        assert (await gateway.chat()).status_code == 429
        now[0] = 100.0
    async with serving(tmp_path, engine(), **limits) as gateway:
        assert (await gateway.chat()).status_code == 429, "what the last process left"
        now[0] = 161.0
        assert (await gateway.chat()).status_code == 200


async def test_a_restart_counts_what_is_on_disk(tmp_path: Path) -> None:
    async with serving(tmp_path, engine(), max_outstanding=2) as gateway:
        receipt = await gateway.receipt()
        await gateway.report(await gateway.receipt())
    async with serving(tmp_path, engine(), max_outstanding=2) as gateway:
        refused = await gateway.chat()
        assert "1 without a report, 1 queued" in refused.json()["error"]["message"]
        await gateway.report(receipt)
        assert (await gateway.chat()).status_code == 200, "two queued make no batch by themselves: one more may come"


def test_the_default_has_room_for_every_conf() -> None:
    config = load_run("cpu_smoke", [], detect=lambda: 0).config.gateway
    assert config.outstanding(batch_size=1, max_staleness=0) == 1024
    assert config.outstanding(batch_size=128, max_staleness=8) == 4 * 128 * 9


class Pressure(RuleBasedStateMachine):
    """Rollouts that start, end, are reported or forgotten, and steps that take batches, in any order."""

    @initialize(batch=st.integers(1, 3), more=st.integers(0, 2))
    def begin(self, batch: int, more: int) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.database = Database(Path(self.folder.name) / "records.db")
        self.records, self.releases = Records(self.database), Releases(self.database)
        self.records.ensure_scenario("s", at=0.0)
        self.releases.commit(base_release(), report_ids=())
        self.batch, self.limit = batch, batch + more
        self.now, self.made, self.step = 0.0, 0, 0
        self.running: list[Room] = []
        self.open: dict[str, float] = {}
        self.admission = Admission(
            self.records,
            scenario="s",
            max_generations=100,
            max_outstanding=self.limit,
            receipt_ttl_s=TTL_S,
            clock=lambda: self.now,
        )

    def enters(self) -> bool:
        try:
            self.running.append(asyncio.run(self.admission.enter(1, trainable=True)))
        except ApiError as error:
            assert error.status == 429
            return False
        return True

    @rule()
    def start(self) -> None:
        queued, leased = self.records.waiting()
        young = sum(made >= self.now - TTL_S for made in self.open.values())
        others = len(self.running) + young + leased  # what may still make room
        assert self.enters() == (others + queued < self.limit or others == 0)

    @precondition(lambda self: self.running)
    @rule(finished=st.booleans())
    def end(self, finished: bool) -> None:
        if finished:
            receipt, self.made = f"r{self.made}", self.made + 1
            self.records.add_exchange(exchange(receipt, created_at=self.now))
            self.admission.opened(receipt, self.now)
            self.open[receipt] = self.now
        self.admission.leave(self.running.pop())

    @precondition(lambda self: self.open)
    @rule(trains=st.booleans(), data=st.data())
    def graded(self, trains: bool, data: st.DataObject) -> None:
        receipt = data.draw(st.sampled_from(list(self.open)))
        del self.open[receipt]
        made = report(f"p-{receipt}", receipt)
        self.records.accept_report(made, fingerprint="f", trains=trains, reason=None if trains else "ineligible")
        self.admission.reported([receipt], trains=trains)

    @rule()
    def lease_or_commit(self) -> None:
        if held := self.records.batch(self.step + 1):
            ids = [entry.report.id for entry in held]
            self.releases.commit(release(self.step + 1, parent=f"s@{self.step}"), report_ids=ids)
            self.step += 1
        elif len(waiting := self.records.queued(self.batch)) == self.batch:
            self.records.lease(self.step + 1, [entry.report.id for entry in waiting])

    @rule(seconds=st.sampled_from([1.0, TTL_S + 1]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    def teardown(self) -> None:
        """Whatever happened: once running ones have ended, open ones are old and a step is over, one may start."""
        if not hasattr(self, "folder"):
            return
        while self.running:
            self.admission.leave(self.running.pop())
        self.now += TTL_S + 1
        if self.records.batch(self.step + 1):
            self.lease_or_commit()
        assert self.enters()
        assert self.admission.running == 1
        self.database.close()
        self.folder.cleanup()


TestPressure = Pressure.TestCase
TestPressure.settings = settings(
    max_examples=30, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)
