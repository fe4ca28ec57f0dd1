"""Why a graded rollout is not trained: one word per kind, as clients and metrics see it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Reason(StrEnum):
    """The names are part of the HTTP contract."""

    # of a generation
    EMPTY_COMPLETION = "empty_completion"  # no token was sampled
    ABORTED = "aborted"  # the engine gave up on it
    CLIENT_DISCONNECT = "client_disconnect"  # the client left before the end
    SAMPLING_TRUNCATED = "sampling_truncated"  # top_p, top_k, min_p or penalties: log-probs of another distribution
    TEMPERATURE_ZERO = "temperature_zero"  # greedy: the sampling distribution is degenerate
    MISSING_LOGPROBS = "missing_logprobs"  # a token without a finite log-prob
    LENGTH_MISMATCH = "length_mismatch"  # ids, log-probs and version spans disagree
    SEVERAL_CHOICES = "several_choices"  # one of n > 1 answers to one request
    # of a report
    NO_REFERENCES = "no_references"  # it grades no receipt
    MULTI_REFERENCE = "multi_reference"  # multi-turn trajectories are stored, not trained yet
    OTHER_SCENARIO = "other_scenario"  # this deployment trains another scenario
    INELIGIBLE = "ineligible"  # metadata.training.eligible is false
    ALREADY_REPORTED = "already_reported"  # another report trains on the receipt
    UNTRAINED_ARM = "untrained_arm"  # nothing is trained in this run
    # of its time
    STALE = "stale"  # produced by weights more than max_staleness updates ago
    LINEAGE = "lineage"  # produced by weights of another lineage


@dataclass(frozen=True, slots=True)
class Rejection:
    """This will not train."""

    reason: Reason
