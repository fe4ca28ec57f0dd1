"""The conductor: Single-Rollout Asynchronous Optimization as a loop (arXiv 2607.07508).

take a graded rollout → train critic and actor on it → put the state on disk → serve the new weights → commit.

The order is the contract. Weights are on disk before the engine serves them, and the engine serves them before the
release is visible, so a kill at any point leaves a chain without a gap.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from saocli.engine.base import Engine
from saocli.store.chain import Draft
from saocli.trainer.base import Trainer
from saocli.types import Operation, Release, StepOutput, Taken


class Source(Protocol):
    """Graded rollouts in the order they were accepted."""

    async def take(self, step: int) -> Taken | None:
        """Wait for a full batch and lease it, or give the one that `step` holds; None once drained or paused."""
        ...


class Chain(Protocol):
    """The release chain on disk."""

    def next_step(self) -> int: ...
    def draft(self, step: int) -> Draft: ...

    async def commit(
        self,
        draft: Draft,
        *,
        operation: Operation,
        receipts: Sequence[str],
        report_ids: Sequence[str],
        digest: str | None,
        metrics: Mapping[str, float | None],
    ) -> Release:
        """Make the release current and its reports trained, in one transaction. `digest` None: weights unchanged."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Parts:
    """What the loop conducts."""

    source: Source
    trainer: Trainer
    engine: Engine
    chain: Chain
    measure: Callable[[Taken, StepOutput, Mapping[str, float]], Mapping[str, float | None]]
    committed: Callable[[Release, StepOutput], None]


async def conduct(parts: Parts, *, last_step: int | None) -> None:
    """Train one batch after another until the source is drained or `last_step` is committed."""
    step = parts.chain.next_step()
    while last_step is None or step <= last_step:
        started = time.monotonic()
        taken = await parts.source.take(step)
        if taken is None:
            return
        clock = Stopwatch(wait=time.monotonic() - started)

        output = await parts.trainer.step(taken.batch)

        draft, digest = parts.chain.draft(step), None
        if output.actor_trained:
            with clock.timed("export"):
                digest = await parts.trainer.export(draft.weights)
        if draft.state is not None:
            with clock.timed("save"):
                await parts.trainer.save(draft.state)
        if output.actor_trained:
            with clock.timed("publish"):
                await parts.engine.load(draft.weights, draft.version)

        release = await parts.chain.commit(
            draft,
            operation=Operation.NOOP if output.noop_reason else Operation.TRAINING,
            receipts=[sample.receipt for sample in taken.batch.samples],
            report_ids=taken.report_ids,
            digest=digest,
            metrics=parts.measure(taken, output, clock.seconds()),
        )
        parts.committed(release, output)
        step += 1


class Stopwatch:
    """Seconds per named phase of one step, and of the whole step after the wait."""

    def __init__(self, *, wait: float) -> None:
        self._seconds = {"wait": wait}
        self._start = time.monotonic()

    @contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        start = time.monotonic()
        yield
        self._seconds[phase] = time.monotonic() - start

    def seconds(self) -> Mapping[str, float]:
        return self._seconds | {"step": time.monotonic() - self._start}
