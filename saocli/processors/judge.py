"""Recorded generations and a report become a Sample, or a named reason why not."""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Sequence

from saocli.processors.reasons import Reason, Rejection
from saocli.types import Exchange, FinishReason, Report, Sample

__all__ = ["Reason", "Rejection", "judge", "untrainable"]


def judge(report: Report, exchanges: Sequence[Exchange], *, trained_scenario: str) -> Sample | Rejection:
    """The sample that `report` makes of the generations it refers to, in call order; pure.

    The response is exactly the recorded ids, which end with the stop token or the token that completed a stop string:
    nothing is tokenised again, and nothing after a stop is ever trained. Staleness is not judged here, since it depends
    on when the sample's step starts (`processors.staleness`).
    """
    reason = _refusal(report, exchanges, trained_scenario)
    if reason is not None:
        return Rejection(reason)
    (exchange,) = exchanges
    return Sample(
        receipt=exchange.receipt,
        prompt_ids=exchange.prompt_ids,
        response_ids=exchange.output_ids,
        action_mask=(1,) * len(exchange.output_ids),
        rollout_logprobs=tuple(value for value in exchange.logprobs if value is not None),
        score=report.score,
        temperature=exchange.sampling.temperature,
        group=prompt_group(exchange.prompt_ids),
        versions=tuple(dict.fromkeys(span.version for span in exchange.spans)),
        truncated=exchange.finish_reason is FinishReason.LENGTH,
        reported_at=report.created_at,
    )


def untrainable(exchange: Exchange) -> Reason | None:
    """What in the recorded generation itself forbids training on it, or None.

    Sampling with top_p, top_k, min_p or penalties draws from another distribution than the model's softmax, so the
    ratio of trainer to rollout probability would be off 1 before anything moved; at temperature 0 it is undefined.
    """
    if not exchange.trainable:
        return Reason(str(exchange.why_not))
    tokens = len(exchange.output_ids)
    if exchange.finish_reason is FinishReason.ABORT:
        return Reason.ABORTED
    if tokens == 0:
        return Reason.EMPTY_COMPLETION
    if exchange.sampling.truncations():
        return Reason.SAMPLING_TRUNCATED
    if exchange.sampling.temperature == 0:
        return Reason.TEMPERATURE_ZERO
    if not exchange.logprobs:
        return Reason.MISSING_LOGPROBS
    if len(exchange.logprobs) != tokens or not _covers(exchange, tokens):
        return Reason.LENGTH_MISMATCH
    if any(value is None or not math.isfinite(value) for value in exchange.logprobs):
        return Reason.MISSING_LOGPROBS
    return None


def prompt_group(prompt_ids: Sequence[int]) -> str:
    """A name that rollouts of one prompt share: the start of the sha256 over its ids."""
    return hashlib.sha256(struct.pack(f"<{len(prompt_ids)}q", *prompt_ids)).hexdigest()[:16]


def _refusal(report: Report, exchanges: Sequence[Exchange], trained_scenario: str) -> Reason | None:
    if any(scenario != trained_scenario for scenario in (report.scenario, *(e.scenario for e in exchanges))):
        return Reason.OTHER_SCENARIO
    if not exchanges:
        return Reason.NO_REFERENCES
    training = report.metadata.get("training")
    if isinstance(training, dict) and training.get("eligible") is False:
        return Reason.INELIGIBLE
    if len(exchanges) > 1:
        return Reason.MULTI_REFERENCE
    return untrainable(exchanges[0])


def _covers(exchange: Exchange, tokens: int) -> bool:
    """The spans are [0, a), [a, b), … up to the last token."""
    ends = [0, *(span.end for span in exchange.spans)]
    return ends[-1] == tokens and all(span.start == end for span, end in zip(exchange.spans, ends, strict=False))
