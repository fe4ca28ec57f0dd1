"""Records, queue and releases under random interleavings and crashes, against a small model of what must be true."""

from __future__ import annotations

import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from gatewaykit import release
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from storekit import exchange, report

from saocli.processors.judge import Rejection, judge
from saocli.queue import SampleQueue
from saocli.store.database import Database
from saocli.store.entries import Accepted, Conflict
from saocli.store.records import Records
from saocli.store.releases import Releases
from saocli.types import Operation, Span

IDS = [f"p{number}" for number in range(8)]
Content = tuple[float, tuple[str, ...], bool]  # score, references, eligible


@dataclass
class Model:
    """What the store must say, in the plainest terms."""

    batch: int
    max_staleness: int
    served: dict[str, int] = field(default_factory=lambda: {"s@0": 0})  # version → its newest step
    head: tuple[int, str] = (0, "s@0")  # step, version
    receipts: dict[str, tuple[tuple[str, ...], str | None]] = field(default_factory=dict)  # → versions, why it is out
    content: dict[str, Content] = field(default_factory=dict)  # by report
    answer: dict[str, tuple[bool, str | None]] = field(default_factory=dict)
    state: dict[str, str] = field(default_factory=dict)  # in order of acceptance
    claimed: set[str] = field(default_factory=set)

    def accept(self, report_id: str, content: Content) -> tuple[bool, str | None] | None:
        """The answer to a report; None: conflict."""
        if report_id in self.content:
            return self.answer[report_id] if self.content[report_id] == content else None
        _, references, eligible = content
        reason = None
        if not references:
            reason = "no_references"
        elif not eligible:
            reason = "ineligible"
        elif len(references) > 1:
            reason = "multi_reference"
        elif self.receipts[references[0]][1]:
            reason = self.receipts[references[0]][1]
        elif references[0] in self.claimed:
            reason = "already_reported"
        else:
            self.claimed.add(references[0])
        self.content[report_id] = content
        self.state[report_id] = "recorded" if reason else "queued"
        self.answer[report_id] = (reason is None, reason)
        return self.answer[report_id]

    def take(self) -> list[str] | None:
        """The batch of the next step; one that was begun is given again."""
        if leased := self.of("leased"):
            return leased
        while len(chosen := self.of("queued")[: self.batch]) == self.batch:
            stale = [one for one in chosen if max(self.lags(one)) > self.max_staleness]
            self.state.update(dict.fromkeys(stale, "dropped") if stale else dict.fromkeys(chosen, "leased"))
            if not stale:
                return chosen
        return None

    def commit(self, moves: bool) -> None:
        step = self.head[0] + 1
        self.head = (step, f"s@{step}" if moves else self.head[1])
        self.served[self.head[1]] = step
        self.state.update(dict.fromkeys(self.of("leased"), "trained"))

    def of(self, state: str) -> list[str]:
        return [one for one, standing in self.state.items() if standing == state]

    def lags(self, report_id: str) -> tuple[int, ...]:
        """Steps from each producing version to the serving one, oldest first."""
        versions, _ = self.receipts[self.content[report_id][1][0]]
        return tuple(self.head[0] - self.served[version] for version in versions)


class Store(RuleBasedStateMachine):
    """The real thing beside the model."""

    @initialize(batch=st.integers(1, 3), max_staleness=st.integers(0, 3))
    def begin(self, batch: int, max_staleness: int) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.model = Model(batch=batch, max_staleness=max_staleness)
        self.database: Database | None = None
        self.trained: Counter[str] = Counter()
        self.counted = self.told = 0  # drops that committed steps have told of; and those of the batch at hand
        self.crash()
        self.records.ensure_scenario("s", at=0.0)
        self.releases.commit(release(0, Operation.BASE, parent=None), report_ids=())

    @rule()
    def step(self) -> None:
        """Take a batch and train on it."""
        self.take()
        if self.model.of("leased"):
            self.commit(moves=True)

    @rule()
    def crash(self) -> None:
        """The file is opened again while nobody has closed it; the queue in memory is lost."""
        left, self.database = self.database, Database(Path(self.folder.name) / "records.db")
        self.records, self.releases = Records(self.database), Releases(self.database)
        self.queue = SampleQueue(
            self.records,
            self.releases,
            scenario="s",
            batch_size=self.model.batch,
            max_staleness=self.model.max_staleness,
            on_drop=lambda: None,
        )
        if left is not None:
            left.close()

    @rule(old=st.integers(0, 4), over=st.integers(0, 2), trainable=st.integers(0, 4))
    def generate(self, old: int, over: int, trainable: int) -> None:
        """An attempt that began `old` versions ago and went on over `over` publications."""
        receipt, why = f"r{len(self.model.receipts)}", None if trainable else "client_disconnect"
        first = max(0, len(self.model.served) - 1 - old)
        versions = tuple(list(self.model.served)[first : first + over + 1])
        ends = [*range(1, len(versions)), 3]
        spans = tuple(
            Span(version=version, start=start, end=end)
            for version, start, end in zip(versions, [0, *ends], ends, strict=False)
        )
        self.records.add_exchange(exchange(receipt, spans=spans, trainable=why is None, why_not=why))
        self.model.receipts[receipt] = (versions, why)

    @precondition(lambda self: self.model.receipts)
    @rule(report_id=st.sampled_from(IDS), fresh=st.integers(0, 2), score=st.sampled_from([0.0, 1.0]), data=st.data())
    def report(self, report_id: str, fresh: int, score: float, data: st.DataObject) -> None:
        if fresh:
            report_id = f"f{len(self.model.content)}"
        newest = list(self.model.receipts)[-4:]
        references = tuple(data.draw(st.lists(st.sampled_from(newest), max_size=2, unique=True)))
        self.accept(report_id, score, references, eligible=data.draw(st.integers(0, 4)) > 0)

    @rule(old=st.integers(0, 3), over=st.integers(0, 2))
    def attempt(self, old: int, over: int) -> None:
        """As clients do it: generate, then report once."""
        self.generate(old=old, over=over, trainable=True)
        self.accept(f"f{len(self.model.content)}", 1.0, (list(self.model.receipts)[-1],), eligible=True)

    def accept(self, report_id: str, score: float, references: tuple[str, ...], *, eligible: bool) -> None:
        expected = self.model.accept(report_id, (score, references, eligible))
        made = report(report_id, *references, score=score, metadata={"training": {"eligible": eligible}})
        graded = [one for receipt in references if (one := self.records.get_exchange(receipt)) is not None]
        judged = judge(made, graded, trained_scenario="s")
        reason = judged.reason if isinstance(judged, Rejection) else None
        found = self.records.accept_report(
            made, fingerprint=f"{score}{references}{eligible}", trains=reason is None, reason=reason
        )
        if expected is None:
            assert isinstance(found, Conflict)
        else:
            assert isinstance(found, Accepted)
            assert (found.trains, found.reason) == expected

    @precondition(lambda self: self.model.state)
    @rule()
    def take(self) -> None:
        expected = self.model.take()
        taken = self.queue._try_take(self.model.head[0] + 1)  # `take` without its waiting
        assert (None if taken is None else list(taken.report_ids)) == expected
        if taken is not None:
            assert list(taken.lags) == [self.model.lags(one) for one in taken.report_ids]
            assert all(0 <= lag <= self.model.max_staleness for lags in taken.lags for lag in lags)
            self.told = len(self.model.of("dropped")) - self.counted
            assert taken.dropped == ({"stale": self.told} if self.told else {}), "each drop is told once"

    @precondition(lambda self: self.model.of("leased"))
    @rule(moves=st.booleans())
    def commit(self, moves: bool) -> None:
        leased, (step, version) = self.model.of("leased"), self.model.head
        receipts = tuple(self.model.content[one][1][0] for one in leased)
        self.model.commit(moves)
        operation = Operation.TRAINING if moves else Operation.NOOP
        metrics = {"dropped/stale": float(self.told)}
        made = release(
            step + 1,
            operation,
            parent=f"s@{step}",
            receipts=receipts,
            weight_version=self.model.head[1],
            metrics=metrics,
        )
        self.counted += self.told
        assert moves or made.weight_version == version
        self.releases.commit(made, report_ids=leased)
        self.trained.update(receipts)

    @invariant()
    def each_report_stands_in_one_place(self) -> None:
        entries = self.records.reports("s")
        assert {entry.report.id: entry.standing.state.value for entry in entries} == self.model.state
        listed = Counter(entry.standing.reason for entry in entries if entry.standing.reason)
        assert self.records.drops() == listed
        assert listed["stale"] == len(self.model.of("dropped"))
        states = Counter(self.model.state.values())
        counts = self.records.counts()
        for state in ("queued", "leased", "trained", "dropped", "recorded"):
            assert getattr(counts, state) == states[state]
        assert self.records.waiting() == (states["queued"], states["leased"])
        reported = {receipt for _, references, _ in self.model.content.values() for receipt in references}
        unreported = [r for r, (_, why) in self.model.receipts.items() if why is None and r not in reported]
        assert list(self.records.open_receipts("s", since=0.0)) == unreported
        assert counts.open == len(unreported)

    @invariant()
    def no_receipt_trains_twice(self) -> None:
        assert max(self.trained.values(), default=1) == 1
        assert set(self.trained) == {self.model.content[one][1][0] for one in self.model.of("trained")}

    @invariant()
    def the_chain_has_no_gap(self) -> None:
        steps = [entry.step for entry in self.releases.list("s")]
        assert steps == list(range(self.model.head[0], -1, -1))

    def teardown(self) -> None:
        if getattr(self, "database", None) is not None:
            self.database.close()
            self.folder.cleanup()


TestStore = Store.TestCase
TestStore.settings = settings(
    max_examples=40, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)
