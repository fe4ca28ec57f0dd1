"""The step record: the contract's names, lags, rates, rolling windows and their restart."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from saocli.metrics.record import CONTRACT, StepRecorder
from saocli.metrics.rolling import Rolling
from saocli.metrics.sinks import JsonlSink, read_records
from saocli.types import Batch, Operation, Release, RolloutMoments, Sample, StepOutput


def sample(score: float, mask: tuple[int, ...] = (1, 1), *, truncated: bool = False) -> Sample:
    return Sample(
        receipt="r",
        prompt_ids=(1,),
        response_ids=(2,) * len(mask),
        action_mask=mask,
        rollout_logprobs=(-1.0,) * len(mask),
        score=score,
        temperature=1.0,
        group="g",
        versions=("v",),
        truncated=truncated,
        reported_at=0.0,
    )


def moments(score: float, value: float, count: int = 2) -> RolloutMoments:
    gap = score - value
    return RolloutMoments(
        count=count,
        return_sum=count * score,
        return_sq=count * score**2,
        residual_sum=count * gap,
        residual_sq=count * gap**2,
    )


@dataclass
class Taken:
    batch: Batch
    lags: list[tuple[int, ...]]
    queue_ages_s: list[float]
    dropped: dict[str, int] = field(default_factory=dict)


class Memory:
    def __init__(self) -> None:
        self.records: list[Any] = []

    def write(self, record: Any) -> None:
        self.records.append(record)

    def close(self) -> None:
        pass


def taken(step: int, *samples: Sample, lags: list[tuple[int, ...]] | None = None, **dropped: int) -> Taken:
    batch = Batch(step=step, samples=samples)
    return Taken(batch, lags or [(0,)] * len(samples), [0.5] * len(samples), dropped)


def output(step: int, *parts: RolloutMoments, trained: bool = True, **metrics: float | None) -> StepOutput:
    return StepOutput(step=step, metrics=metrics, actor_trained=trained, moments=parts)


def release(step: int, metrics: dict[str, float | None]) -> Release:
    return Release(
        release_id=f"demo@{step}",
        scenario="demo",
        step=step,
        operation=Operation.TRAINING,
        current=True,
        parent_release_id=None,
        weight_version=str(step),
        arm="sao",
        created_at=1.0,
        receipts=("r",),
        metrics=metrics,
        checkpoint=None,
        digest="",
    )


def recorder(size: int = 128, *sinks: Any, rolling: Rolling | None = None) -> StepRecorder:
    return StepRecorder(rolling=rolling or Rolling(size), sinks=sinks, advantage="skip_observation_gae")


def test_every_name_of_the_contract_is_there() -> None:
    metrics = recorder().measure(taken(1, sample(1.0)), output(1), {})
    assert list(metrics)[: len(CONTRACT)] == list(CONTRACT)
    assert metrics["pg_loss"] is None
    assert metrics["critic/explained_variance"] is None


def test_lag_counts_the_oldest_version_and_is_never_negative() -> None:
    metrics = recorder().measure(taken(1, sample(1.0), sample(0.0), lags=[(4, 2), (1,)]), output(1), {})
    assert [metrics[f"sao/policy_lag_{kind}"] for kind in ("min", "mean", "max")] == [1.0, 2.0, 4.0]
    with pytest.raises(ValueError, match="negative policy lag"):
        recorder().measure(taken(1, sample(1.0), lags=[(-1,)]), output(1), {})


def test_rates_count_what_they_say() -> None:
    batch = taken(1, sample(1.0, (1, 1, 0, 1)), sample(0.0, (1,) * 4, truncated=True), stale=2)
    metrics = recorder().measure(batch, output(1, pg_clipfrac=0.25), {"wait": 1.0, "step": 3.0})
    assert metrics["rollout/response_tokens"] == 4.0
    assert metrics["rollout/truncated_rate"] == 0.5
    assert metrics["tokens_per_s"] == 2.0
    assert metrics["time/step_s"] == 3.0
    assert metrics["sao/effective_token_rate"] == 0.75 * 7 / 8
    assert metrics["dropped/stale"] == 2.0
    assert metrics["reward/mean"] == 0.5
    untrained = recorder().measure(batch, output(1, trained=False, pg_clipfrac=0.0), {})
    assert untrained["sao/effective_token_rate"] == 0.0
    assert untrained["sao/actor_trained"] == 0.0
    assert untrained["tokens_per_s"] is None


def test_no_nan_reaches_a_release() -> None:
    metrics = recorder().measure(taken(1, sample(1.0)), output(1, pg_loss=math.nan, ratio_max=math.inf), {})
    assert metrics["pg_loss"] is None
    assert metrics["ratio_max"] is None


def test_rolling_explained_variance_shows_at_batch_size_one() -> None:
    steps = recorder()
    first = steps.measure(taken(1, sample(1.0)), output(1, moments(1.0, 0.5)), {})
    second = steps.measure(taken(2, sample(0.0)), output(2, moments(0.0, 0.0)), {})
    assert first["critic/explained_variance_rolling"] is None
    assert second["critic/explained_variance"] is None
    # Returns 1 1 0 0 (variance 1/4), residuals ½ ½ 0 0 (variance 1/16).
    assert second["critic/explained_variance_rolling"] == pytest.approx(0.75)
    assert second["reward/rolling"] == 0.5


def test_windows_forget_and_survive_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    sink = JsonlSink(path)
    steps = recorder(3, sink)
    for step in range(1, 6):
        batch, done = taken(step, sample(float(step))), output(step, moments(float(step), 1.0))
        steps.committed(release(step, steps.measure(batch, done, {})), done)
    sink.close()
    final, extra = taken(6, sample(6.0)), output(6, moments(6.0, 2.0))
    straight = steps.measure(final, extra, {})
    again = recorder(rolling=Rolling.restored(3, read_records(path))).measure(final, extra, {})
    assert straight["reward/rolling"] == 5.0
    assert again == straight


def test_the_record_names_the_advantage_function_and_goes_to_every_sink() -> None:
    one, two = Memory(), Memory()
    steps = recorder(128, one, two)
    done = output(1, moments(1.0, 0.5))
    record = steps.committed(release(1, steps.measure(taken(1, sample(1.0)), done, {})), done)
    assert one.records == two.records == [record]
    assert record["advantage"] == "skip_observation_gae"
    assert (record["tokens"], record["rollouts"], record["scores"]) == (2, 1, [1.0])
    json.dumps(record, allow_nan=False)


def test_a_commit_without_its_measure_is_refused() -> None:
    with pytest.raises(ValueError, match="step 1"):
        recorder().committed(release(1, {}), output(1))


def test_jsonl_is_flushed_line_by_line_and_knows_no_nan(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    sink = JsonlSink(path)
    sink.write({"a": math.nan, "b": [math.inf, 1.5], "c": {"d": -math.inf}, "e": "–"})
    assert json.loads(path.read_text()) == {"a": None, "b": [None, 1.5], "c": {"d": None}, "e": "–"}
    sink.close()


def test_a_torn_last_line_is_cut_before_the_next_record(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"step": 2, "pg_l')
    assert list(read_records(path)) == [{"step": 1}]
    sink = JsonlSink(path)
    sink.write({"step": 2})
    sink.close()
    assert list(read_records(path)) == [{"step": 1}, {"step": 2}]
    assert list(read_records(tmp_path / "none.jsonl")) == []
