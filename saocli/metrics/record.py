"""The record of one commit: every metric of the contract, null where undefined."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, Protocol

from saocli.algo.pooled_variance import pooled_explained_variance
from saocli.metrics.rolling import Rolling
from saocli.metrics.sinks import Sink
from saocli.types import DROPPED, Batch, Release, StepOutput

# Always present; besides these `dropped/{reason}` and whatever more the trainer or the clock has to say.
CONTRACT = (
    "pg_loss",
    "pg_clipfrac",
    "ratio_mean",
    "ratio_max",
    "approx_kl",
    "train_rollout_logprob_abs_diff",
    "train_rollout_logprob_abs_diff_max",
    "critic/loss",
    "critic/explained_variance",
    "critic/explained_variance_rolling",
    "critic/value_mean",
    "critic/grad_norm",
    "actor/grad_norm",
    "sao/policy_lag_min",
    "sao/policy_lag_mean",
    "sao/policy_lag_max",
    "sao/queue_age_s_mean",
    "sao/queue_age_s_max",
    "sao/effective_token_rate",
    "sao/critic_updates",
    "sao/actor_trained",
    "reward/mean",
    "reward/rolling",
    "rollout/response_tokens",
    "rollout/truncated_rate",
    "time/wait_s",
    "time/critic_s",
    "time/actor_s",
    "time/export_s",
    "time/publish_s",
    "time/step_s",
    "tokens_per_s",
)


class Leased(Protocol):
    """A batch and what the queue knows of it."""

    @property
    def batch(self) -> Batch: ...

    @property
    def lags(self) -> Sequence[Sequence[int]]:
        """B; weight updates between each version that wrote a rollout and the one that served when its step began."""
        ...

    @property
    def queue_ages_s(self) -> Sequence[float]:
        """B; accepted → taken."""
        ...

    @property
    def dropped(self) -> Mapping[str, int]:
        """Reports dropped since the last batch, by reason."""
        ...


class StepRecorder:
    """Measures each step for its release, then writes the record once the release is committed."""

    def __init__(self, *, rolling: Rolling, sinks: Sequence[Sink], advantage: str) -> None:
        """`advantage` names the advantage function in use."""
        self._rolling = rolling
        self._sinks = sinks
        self._advantage = advantage
        self._batch: Batch | None = None
        self._notes: dict[str, float | None] = {}

    def note(self, values: Mapping[str, float | None]) -> None:
        """Values that the next step's metrics carry besides its own."""
        self._notes |= values

    def measure(self, taken: Leased, output: StepOutput, seconds: Mapping[str, float]) -> dict[str, float | None]:
        """See `measure`; takes the batch into the rolling windows."""
        self._batch = taken.batch
        self._rolling.add([sample.score for sample in taken.batch.samples], output.moments)
        return measure(taken, output, seconds, self._rolling) | self._notes

    def committed(self, release: Release, output: StepOutput) -> dict[str, Any]:
        """Write the measured step's record to every sink, and return it."""
        if self._batch is None or self._batch.step != release.step:
            raise ValueError(f"step {release.step} was committed without being measured")
        self._notes = {}
        return self._write(step_record(release, self._batch, output, advantage=self._advantage))

    def rolled_back(self, release: Release) -> dict[str, Any]:
        """Write the record of a rollback to every sink, and return it."""
        return self._write(rollback_record(release, advantage=self._advantage))

    def _write(self, record: dict[str, Any]) -> dict[str, Any]:
        for sink in self._sinks:
            sink.write(record)
        return record


def measure(
    taken: Leased, output: StepOutput, seconds: Mapping[str, float], rolling: Rolling
) -> dict[str, float | None]:
    """One step's metrics, the whole contract; `rolling` has the batch in it already.

    `seconds`: by phase; `step` is everything after the `wait` for the batch, and `tokens_per_s` spans both. Raises
    ValueError for a negative lag: such a version is of another lineage and must not have been trained.
    """
    batch = taken.batch
    known = {
        **output.metrics,
        "critic/explained_variance": pooled_explained_variance(output.moments),
        "critic/explained_variance_rolling": rolling.explained_variance(),
        **_lag(taken.lags),
        "sao/queue_age_s_mean": _mean(taken.queue_ages_s),
        "sao/queue_age_s_max": max(taken.queue_ages_s, default=None),
        "sao/effective_token_rate": _effective_token_rate(batch, output),
        "sao/actor_trained": float(output.actor_trained),
        "reward/mean": _mean([sample.score for sample in batch.samples]),
        "reward/rolling": rolling.reward(),
        "rollout/response_tokens": _mean([len(sample.response_ids) for sample in batch.samples]),
        "rollout/truncated_rate": _mean([sample.truncated for sample in batch.samples]),
        **{f"{DROPPED}{reason}": float(count) for reason, count in taken.dropped.items()},
        **{f"time/{phase}_s": value for phase, value in seconds.items()},
        "tokens_per_s": _rate(_response_tokens(batch), seconds.get("wait", 0.0) + seconds.get("step", 0.0)),
    }
    # NaN has no place in JSON, and release entries are served as JSON.
    return {**dict.fromkeys(CONTRACT), **{name: _finite(value) for name, value in known.items()}}


def step_record(release: Release, batch: Batch, output: StepOutput, *, advantage: str) -> dict[str, Any]:
    """One line of metrics.jsonl: what was committed, its metrics (from `release`), and what restores `Rolling`."""
    return {
        "step": release.step,
        "release": release.release_id,
        "parent": release.parent_release_id,
        "operation": release.operation.value,
        "arm": release.arm,
        "advantage": advantage,
        "committed_at": release.created_at,
        "noop_reason": output.noop_reason,
        "actor_idle": output.actor_idle,
        "rollouts": len(batch.samples),
        "tokens": _response_tokens(batch),
        **release.metrics,
        "scores": [sample.score for sample in batch.samples],
        "moments": [asdict(moments) for moments in output.moments],
    }


def rollback_record(release: Release, *, advantage: str) -> dict[str, Any]:
    """The line of a rollback, which trains nothing: the contract's metrics are undefined."""
    nothing = StepOutput(step=release.step, metrics={}, actor_trained=False)
    undefined = replace(release, metrics={**dict.fromkeys(CONTRACT), **release.metrics})
    return step_record(undefined, Batch(step=release.step, samples=()), nothing, advantage=advantage)


def _lag(lags: Sequence[Sequence[int]]) -> dict[str, float | None]:
    """A rollout of several versions counts its oldest for max, its newest for min, and their mean for mean."""
    if any(lag < 0 for rollout in lags for lag in rollout):
        raise ValueError(f"negative policy lag in {[list(rollout) for rollout in lags]}: a version of another lineage")
    return {
        "sao/policy_lag_min": min((float(min(rollout)) for rollout in lags), default=None),
        "sao/policy_lag_mean": _mean([sum(rollout) / len(rollout) for rollout in lags]),
        "sao/policy_lag_max": max((float(max(rollout)) for rollout in lags), default=None),
    }


def _effective_token_rate(batch: Batch, output: StepOutput) -> float | None:
    """Action tokens that moved the actor / response tokens; 0 when the actor was not trained."""
    clipped = output.metrics.get("pg_clipfrac") if output.actor_trained else 1.0
    if clipped is None:
        return None
    return _rate((1.0 - clipped) * sum(sample.action_tokens for sample in batch.samples), _response_tokens(batch))


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _response_tokens(batch: Batch) -> int:
    return sum(len(sample.response_ids) for sample in batch.samples)


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _rate(amount: float, per: float) -> float | None:
    return amount / per if per > 0 else None
