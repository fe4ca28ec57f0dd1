"""What the store answers with, besides the carriers of saocli.types."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from saocli.types import Exchange, FinishReason, Report, Sampling

ALREADY_REPORTED = "already_reported"  # another report already trains on the receipt


class State(StrEnum):
    """Where a report stands, or the receipt that it trains on."""

    OPEN = "open"  # receipts only: no report yet
    QUEUED = "queued"  # accepted, waits for a step
    LEASED = "leased"  # in the step that runs
    TRAINED = "trained"
    DROPPED = "dropped"  # accepted for training, then refused with a reason
    RECORDED = "recorded"  # kept, never trained

    @property
    def final(self) -> bool:
        """Nothing will change it any more."""
        return self in {State.TRAINED, State.DROPPED, State.RECORDED}


@dataclass(frozen=True, kw_only=True, slots=True)
class Accepted:
    """The stored answer to a report; the same for each retry."""

    report_id: str
    scenario: str
    trains: bool
    reason: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Conflict:
    """The id is taken by a record with other content."""

    report_id: str


@dataclass(frozen=True, kw_only=True, slots=True)
class QueuedReport:
    """A report that waits for a step, with what it grades in call order."""

    seq: int  # in order of acceptance
    report: Report
    exchanges: tuple[Exchange, ...]

    @property
    def exchange(self) -> Exchange:
        """The first (of a single-turn attempt: the only) generation."""
        return self.exchanges[0]


@dataclass(frozen=True, kw_only=True, slots=True)
class Counts:
    """How many there are of each."""

    open: int  # trainable receipts without a report
    queued: int
    leased: int
    trained: int
    dropped: int
    recorded: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ReceiptState:
    """Where a receipt stands; `reason` when it does not train, `release_id` and `step` once it did."""

    state: State
    reason: str | None
    release_id: str | None
    step: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class ReceiptEntry:
    """A recorded generation without its token columns."""

    seq: int
    receipt: str
    scenario: str
    session: str | None
    prompt_tokens: int
    output_tokens: int
    versions: tuple[str, ...]  # oldest first
    sampling: Sampling
    finish_reason: FinishReason
    text: str
    created_at: float
    tags: Mapping[str, str]
    trainable: bool
    why_not: str | None
    standing: ReceiptState


@dataclass(frozen=True, kw_only=True, slots=True)
class ReportEntry:
    """A stored report and where it stands."""

    seq: int
    report: Report
    trains: bool  # as answered when it was accepted
    standing: ReceiptState
