"""What becomes a sample, and the named reason of everything else."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from storekit import exchange, report

from saocli.processors.judge import Reason, Rejection, judge
from saocli.processors.staleness import judge_staleness
from saocli.types import FinishReason, Report, Sample, Sampling, Span


def judged(graded: Any = None, made: Report | None = None) -> Sample | Rejection:
    graded = exchange() if graded is None else graded
    return judge(made or report("p1", graded.receipt), (graded,), trained_scenario="s")


def test_a_sample_is_what_was_recorded() -> None:
    graded = exchange(
        spans=(Span(version="s@1", start=0, end=2), Span(version="s@2", start=2, end=3)),
        sampling=Sampling(temperature=0.5),
        finish_reason=FinishReason.LENGTH,
    )
    sample = judged(graded, report("p1", "r1", score=-2.5, created_at=9.0))
    assert isinstance(sample, Sample)
    assert (sample.prompt_ids, sample.response_ids, sample.action_mask) == ((1, 2), (3, 4, 5), (1, 1, 1))
    assert sample.rollout_logprobs == (-0.1, -0.2, -0.3)
    assert (sample.score, sample.temperature, sample.reported_at) == (-2.5, 0.5, 9.0)
    assert sample.versions == ("s@1", "s@2")
    assert sample.truncated


def test_rollouts_of_one_prompt_share_a_group() -> None:
    one, two, other = (judged(e) for e in (exchange("a"), exchange("b"), exchange("c", prompt_ids=(1, 2, 3))))
    assert isinstance(one, Sample)
    assert isinstance(two, Sample)
    assert isinstance(other, Sample)
    assert one.group == two.group != other.group


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"output_ids": (), "logprobs": (), "spans": ()}, Reason.EMPTY_COMPLETION),
        ({"finish_reason": FinishReason.ABORT}, Reason.ABORTED),
        ({"trainable": False, "why_not": "client_disconnect"}, Reason.CLIENT_DISCONNECT),
        ({"sampling": Sampling(top_p=0.9)}, Reason.SAMPLING_TRUNCATED),
        ({"sampling": Sampling(top_k=1)}, Reason.SAMPLING_TRUNCATED),
        ({"sampling": Sampling(min_p=0.1)}, Reason.SAMPLING_TRUNCATED),
        ({"sampling": Sampling(presence_penalty=0.5)}, Reason.SAMPLING_TRUNCATED),
        ({"sampling": Sampling(temperature=0.0)}, Reason.TEMPERATURE_ZERO),
        ({"logprobs": ()}, Reason.MISSING_LOGPROBS),
        ({"logprobs": (-0.1, None, -0.3)}, Reason.MISSING_LOGPROBS),
        ({"logprobs": (-0.1, float("-inf"), -0.3)}, Reason.MISSING_LOGPROBS),
        ({"logprobs": (-0.1, -0.2)}, Reason.LENGTH_MISMATCH),
        ({"logprobs": (-0.1, -0.2, -0.3, -0.4)}, Reason.LENGTH_MISMATCH),
        ({"spans": ()}, Reason.LENGTH_MISMATCH),
        ({"spans": (Span(version="s@0", start=0, end=2),)}, Reason.LENGTH_MISMATCH),
        (
            {"spans": (Span(version="s@0", start=0, end=1), Span(version="s@1", start=2, end=3))},
            Reason.LENGTH_MISMATCH,
        ),
        ({"scenario": "other"}, Reason.OTHER_SCENARIO),
    ],
)
def test_each_flaw_of_a_generation_has_its_reason(fields: dict[str, Any], reason: Reason) -> None:
    assert judged(exchange(**fields)) == Rejection(reason)


def test_each_flaw_of_a_report_has_its_reason() -> None:
    graded = exchange()
    assert judged(graded, report("p", "r1", metadata={"training": {"eligible": False}})) == Rejection(Reason.INELIGIBLE)
    assert isinstance(judged(graded, report("p", "r1", metadata={"training": {"eligible": True}})), Sample)
    assert judged(graded, report("p", "r1", scenario="other")) == Rejection(Reason.OTHER_SCENARIO)
    assert judge(report("p"), (), trained_scenario="s") == Rejection(Reason.NO_REFERENCES)
    both = (graded, replace(graded, receipt="r2"))
    assert judge(report("p", "r1", "r2"), both, trained_scenario="s") == Rejection(Reason.MULTI_REFERENCE)


@pytest.mark.parametrize(
    ("produced", "serving", "limit", "expected"),
    [
        ([(0, 3)], (0, 3), 0, (0,)),
        ([(0, 2)], (0, 3), 0, Reason.STALE),
        ([(0, 2)], (0, 3), 1, (1,)),
        ([(0, 1), (0, 3)], (0, 3), 1, Reason.STALE),
        ([(0, 1), (0, 3)], (0, 3), 2, (2, 0)),
        ([(0, 3)], (1, 3), 9, Reason.LINEAGE),
        ([(0, 3), (1, 3)], (1, 3), 9, Reason.LINEAGE),
        ([(0, 4)], (0, 3), 9, Reason.LINEAGE),
        ([None], (0, 3), 9, Reason.LINEAGE),
        ([(0, 0)], None, 9, Reason.LINEAGE),
        ([], (0, 3), 9, Reason.LINEAGE),
    ],
)
def test_age_is_counted_from_the_oldest_version_of_the_same_lineage(
    produced: list[Any], serving: Any, limit: int, expected: Any
) -> None:
    answer = judge_staleness(produced, serving, limit)
    assert answer == (Rejection(expected) if isinstance(expected, Reason) else expected)
