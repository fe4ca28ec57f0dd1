"""A finished run's directory becomes a RunResult."""

from __future__ import annotations

from pathlib import Path

from saocli.compare.results import HeldOut, RunResult, ScoredRollout
from saocli.errors import StoreError
from saocli.metrics.sinks import read_records
from saocli.store.run import RunDirectory


def read_run(directory: RunDirectory, *, seed: int, root: Path) -> RunResult:
    """Everything a comparison needs of a run. Raises StoreError unless it is finished."""
    result = directory.result()
    if result is None:
        raise StoreError(f"{directory.path} is not finished", fix="go on with it: sao compare --resume")
    graded = [attempt for attempt in directory.attempts() if attempt["score"] is not None]
    graded.sort(key=lambda attempt: attempt["at_s"])
    return RunResult(
        seed=seed,
        path=str(directory.path.relative_to(root)),
        rollouts=tuple(
            ScoredRollout(
                index=index,
                problem=attempt["problem"],
                task=attempt["task"],
                attempt=attempt["number"],
                score=attempt["score"],
                tokens=attempt["completion_tokens"],
                truncated=attempt["finish_reason"] == "length",
                state=attempt["state"],
                reason=attempt["reason"],
                step=attempt["step"],
                at_s=attempt["at_s"],
            )
            for index, attempt in enumerate(graded)
        ),
        steps=tuple(read_records(directory.metrics_jsonl)),
        held_out=tuple(
            HeldOut(
                step=evaluation["step"],
                temperature=evaluation["temperature"],
                samples=evaluation["samples"],
                passed=evaluation["passed"],
            )
            for evaluation in directory.evaluations()
        ),
        dropped=result["dropped"],
        start_s=result["start_s"],
        play_s=result["play_s"],
        eval_s=result["eval_s"],
        base_digest=result["base_digest"],
    )
