"""What a step reports, under the contract's metric names; None where a value is undefined."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

from saocli.algo.explained_variance import explained_variance, rollout_moments
from saocli.algo.ratio_stats import ratio_metrics
from saocli.algo.reduce import Tally
from saocli.algo.value_loss import value_metrics
from saocli.types import REFUSED, RolloutMoments, StepOutput

UNDEFINED_UNTIL_RECORDED = (
    "pg_loss",
    "pg_clipfrac",
    "ratio_mean",
    "ratio_max",
    "approx_kl",
    "train_rollout_logprob_abs_diff",
    "train_rollout_logprob_abs_diff_max",
    "critic/loss",
    "critic/explained_variance",
    "critic/value_mean",
    "critic/grad_norm",
    "actor/grad_norm",
    "sao/effective_token_rate",
)
ZERO_UNTIL_RECORDED = ("sao/critic_updates", "time/critic_s", "time/actor_s")


def _blank() -> dict[str, float | None]:
    return {**dict.fromkeys(UNDEFINED_UNTIL_RECORDED), **dict.fromkeys(ZERO_UNTIL_RECORDED, 0.0)}


@dataclass(kw_only=True)
class Record:
    """A step's report in the making."""

    step: int
    metrics: dict[str, float | None] = field(default_factory=_blank)
    moments: tuple[RolloutMoments, ...] = ()

    def critic_pass(
        self,
        tally: Tally,
        norm: float,
        *,
        values: Sequence[torch.Tensor],
        targets: Sequence[torch.Tensor],
        masks: Sequence[torch.Tensor],
    ) -> None:
        """The first critic pass of the batch: loss, values and gradient from before any update. [T] per rollout."""
        self.metrics |= value_metrics(tally)
        self.metrics["critic/grad_norm"] = norm
        actions = [
            (target[mask], value[mask].double()) for target, value, mask in zip(targets, values, masks, strict=True)
        ]
        self.metrics["critic/explained_variance"] = explained_variance(
            torch.cat([target for target, _ in actions]), torch.cat([value for _, value in actions])
        )
        self.moments = tuple(
            rollout_moments(target, value.double(), mask)
            for target, value, mask in zip(targets, values, masks, strict=True)
        )

    def actor_pass(self, tally: Tally, norm: float | None, *, response_tokens: int) -> None:
        """The policy pass; `norm` is None where no gradient was asked for."""
        self.metrics |= ratio_metrics(tally)
        self.metrics["actor/grad_norm"] = norm
        self.metrics["sao/effective_token_rate"] = float(tally.sums["kept_tokens"]) / response_tokens

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Add the block's seconds to metric `name`."""
        started = time.perf_counter()
        yield
        self.metrics[name] = (self.metrics[name] or 0.0) + time.perf_counter() - started

    def trained(self, *, actor_idle: str | None) -> StepOutput:
        """The step moved weights: the critic's, and the actor's unless there is a reason why not."""
        return self._output(actor_trained=actor_idle is None, actor_idle=actor_idle)

    def noop(self, reason: str) -> StepOutput:
        """The step moved nothing."""
        return self._output(actor_trained=False, noop_reason=reason)

    def refused(self, reason: str) -> StepOutput:
        """The guard did not let the step happen."""
        self.metrics[REFUSED] = 1.0
        return self.noop(reason)

    def _output(
        self, *, actor_trained: bool, noop_reason: str | None = None, actor_idle: str | None = None
    ) -> StepOutput:
        metrics = self.metrics | {"sao/actor_trained": float(actor_trained)}
        return StepOutput(
            step=self.step,
            metrics={
                name: value if value is not None and math.isfinite(value) else None for name, value in metrics.items()
            },
            actor_trained=actor_trained,
            noop_reason=noop_reason,
            actor_idle=actor_idle,
            moments=self.moments,
        )
