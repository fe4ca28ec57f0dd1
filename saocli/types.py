"""The carriers that travel between parts. Imports nothing of ours; every list says what it is aligned to.

Legend used in names and docstrings: T response tokens of one rollout, P prompt tokens, B rollouts in a batch,
G rollouts in a group, V vocabulary size. Log-probabilities are natural logs (nats).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

Message = Mapping[str, Any]
REFUSED = "guard/refused"  # a step's metric, 1 where its gradients were not taken
DROPPED = "dropped/"  # begins the step metrics that count drops, one for each reason


class FinishReason(StrEnum):
    """Why a generation ended, in the OpenAI API's words plus `abort`."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"


class Operation(StrEnum):
    """What kind of commit made a release."""

    BASE = "base"
    TRAINING = "training"
    NOOP = "noop"
    ROLLBACK = "rollback"

    @property
    def takes_batch(self) -> bool:
        """Whether reports were taken for it: a step, also one that moved nothing."""
        return self in (Operation.TRAINING, Operation.NOOP)


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """One task as a client plays it."""

    id: str
    messages: tuple[Message, ...]  # OpenAI chat messages, few-shot turns included
    answer: str  # the gold answer, in the grader's notation
    grader: str  # name in tasks.graders
    source: Mapping[str, Any] = field(default_factory=dict)  # whatever the grader needs besides (dataset item …)
    phase: int = 0  # every attempt at earlier phases comes before those at this one


@dataclass(frozen=True, kw_only=True, slots=True)
class Span:
    """Response tokens [start, end) were sampled by the weights called `version`."""

    version: str
    start: int
    end: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Sampling:
    """How tokens were drawn; the trainer needs the temperature, the processor needs to know of truncation."""

    temperature: float = 1.0
    max_new_tokens: int = 128
    top_p: float = 1.0
    top_k: int = -1  # -1: no limit
    min_p: float = 0.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    stop: tuple[str, ...] = ()
    seed: int | None = None

    def truncations(self) -> tuple[str, ...]:
        """The parameters that make the sampling distribution differ from the model's own softmax."""
        neutral = {"top_p": 1.0, "top_k": -1, "min_p": 0.0, "frequency_penalty": 0.0, "presence_penalty": 0.0}
        return tuple(name for name, value in neutral.items() if getattr(self, name) != value)


@dataclass(frozen=True, kw_only=True, slots=True)
class Exchange:
    """One recorded generation: what was asked, what was sampled, by which weights."""

    receipt: str
    scenario: str
    session: str | None
    prompt_ids: tuple[int, ...]  # P
    output_ids: tuple[int, ...]  # T, stop token included
    logprobs: tuple[float | None, ...]  # T, at the sampling temperature; None where the engine gave −inf or nothing
    spans: tuple[Span, ...]  # cover [0, T)
    sampling: Sampling
    finish_reason: FinishReason
    text: str
    created_at: float  # unix seconds
    tags: Mapping[str, str] = field(default_factory=dict)
    trainable: bool = True
    why_not: str | None = None  # the reason's name when not trainable


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """A score against one or more receipts, as accepted."""

    id: str
    scenario: str
    score: float
    references: tuple[str, ...]
    created_at: float
    feedback: Any = None
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """A graded rollout, ready to train: the only thing the trainer ever sees of an attempt."""

    receipt: str
    prompt_ids: tuple[int, ...]  # P
    response_ids: tuple[int, ...]  # T, action and observation tokens
    action_mask: tuple[int, ...]  # T, 1 where the model wrote the token
    rollout_logprobs: tuple[float, ...]  # T, as recorded while sampling; 0.0 at observation tokens
    score: float
    temperature: float
    group: str  # rollouts of one prompt share it; group arms build their barrier from it
    versions: tuple[str, ...]  # distinct weight versions, oldest first
    truncated: bool  # finish_reason was `length`
    reported_at: float  # unix seconds
    history: tuple[float, ...] = ()  # scores of earlier rollouts, oldest first, for arms whose baseline they are

    def __post_init__(self) -> None:
        lengths = {len(self.response_ids), len(self.action_mask), len(self.rollout_logprobs)}
        if len(lengths) != 1:
            raise ValueError(f"sample {self.receipt}: response_ids, action_mask and rollout_logprobs differ in length")

    @property
    def action_tokens(self) -> int:
        """Number of tokens the model wrote (l of the length-adaptive lambda)."""
        return sum(self.action_mask)


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """The rollouts of one optimizer step."""

    step: int  # the step this batch makes, 1 for the first
    samples: tuple[Sample, ...]  # B


@dataclass(frozen=True, kw_only=True, slots=True)
class Taken:
    """A leased batch and what the queue knows of it."""

    batch: Batch
    report_ids: Sequence[str]  # B
    lags: Sequence[tuple[int, ...]]  # B; weight updates between each producing version and the serving one
    queue_ages_s: Sequence[float]  # B; accepted → taken
    dropped: Mapping[str, int]  # reports dropped since the last batch, by reason


@dataclass(frozen=True, kw_only=True, slots=True)
class RolloutMoments:
    """Sums over one rollout's action tokens, enough to pool explained variance over many rollouts."""

    count: int
    return_sum: float
    return_sq: float
    residual_sum: float  # Σ (return − value)
    residual_sq: float


@dataclass(frozen=True, kw_only=True, slots=True)
class StepOutput:
    """What the trainer says of one step."""

    step: int
    metrics: Mapping[str, float | None]  # names as in the metric contract; None where undefined
    actor_trained: bool
    noop_reason: str | None = None  # set when nothing was updated at all
    actor_idle: str | None = None  # why the actor stayed as it was while the critic trained
    moments: tuple[RolloutMoments, ...] = ()  # B, empty for arms without a critic


@dataclass(frozen=True, kw_only=True, slots=True)
class Release:
    """One entry of the version chain."""

    release_id: str
    scenario: str
    step: int
    operation: Operation
    current: bool
    parent_release_id: str | None
    weight_version: str
    arm: str
    created_at: float
    receipts: tuple[str, ...]
    metrics: Mapping[str, float | None]
    checkpoint: str | None  # relative to the run directory; None when not restorable
    digest: str  # sha256 over the exported tensors
