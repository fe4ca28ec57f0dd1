"""Makes the runs of a plan one after another, each in a directory of its own; finished ones are never made again."""

from __future__ import annotations

import json
import shutil
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Protocol

from saocli.compare.plan import Plan, PlannedRun, Request
from saocli.compare.read import read_run
from saocli.compare.results import ArmResult, Comparison, RunResult, Tuning
from saocli.compare.verdict import check_same_start
from saocli.errors import StoreError
from saocli.store.run import RunDirectory

# Plays one run to its end in a fresh directory.
Execute = Callable[[PlannedRun, RunDirectory], Awaitable[None]]


class Progress(Protocol):
    """Who is told how far it is."""

    def started(self, run: PlannedRun) -> None: ...
    def finished(self, run: PlannedRun, result: RunResult, *, again: bool) -> None: ...


REQUEST = "request.json"


def write_request(folder: Path, request: Request) -> None:
    """Put down what was asked for, so that `--resume` needs nothing but the folder."""
    (folder / REQUEST).write_text(json.dumps(asdict(request), indent=2) + "\n")


def read_request(folder: Path) -> Request:
    """What `write_request` wrote. Raises StoreError when the folder holds no comparison."""
    try:
        stored = json.loads((folder / REQUEST).read_text())
    except (OSError, ValueError) as error:
        raise StoreError(f"{folder} holds no comparison", fix="name the folder that `sao compare` printed") from error
    return Request(
        conf=stored["conf"],
        arms=tuple(stored["arms"]),
        overrides=tuple(stored["overrides"]),
        sweep=tuple(stored["sweep"]),
        conf_dir=stored["conf_dir"],
        command=stored["command"],
    )


async def play(plan: Plan, folder: Path, execute: Execute, progress: Progress) -> Comparison:
    """Tune each arm if the plan sweeps, then make every run, and gather the results.

    Raises RunError when two runs of one seed did not start from the same weights.
    """
    tuning = [await _tune(plan, label, folder, execute, progress) for label in plan.labels if plan.tuning_runs(label)]
    planned = plan.runs({one.label: one.chosen for one in tuning})
    done = await _all(planned, folder, execute, progress)
    arms = []
    for label in plan.labels:
        mine = [(run, result) for run, result in zip(planned, done, strict=True) if run.label == label]
        settings = mine[0][0].settings
        arms.append(
            ArmResult(label=label, arm=plan.arm(label), settings=settings, runs=tuple(result for _, result in mine))
        )
    comparison = Comparison(
        conf=plan.config.name,
        description=plan.config.description,
        rollouts=plan.config.compare.rollouts,
        seeds=plan.seeds,
        arms=tuple(arms),
        tuning=tuple(tuning),
    )
    check_same_start(comparison)
    return comparison


async def _tune(plan: Plan, label: str, folder: Path, execute: Execute, progress: Progress) -> Tuning:
    """The value with the highest mean reward over its run; of equals, the one that was named first."""
    runs = plan.tuning_runs(label)
    results = await _all(runs, folder, execute, progress, prefix="tuning")
    values = plan.request.sweep
    tried = tuple(
        (value, sum(result.rewards) / max(1, len(result.rewards)))
        for value, result in zip(values, results, strict=True)
    )
    chosen = max(tried, key=lambda pair: pair[1])[0]
    return Tuning(label=label, seed=runs[0].seed, tried=tried, chosen=chosen)


async def _all(
    runs: Sequence[PlannedRun], folder: Path, execute: Execute, progress: Progress, *, prefix: str = ""
) -> list[RunResult]:
    results = []
    for number, run in enumerate(runs, start=1):
        name = f"{prefix}{number}-{run.folder}" if prefix else run.folder
        directory = RunDirectory(folder / "runs" / name)
        again = directory.path.is_dir() and directory.result() is not None
        if not again:
            progress.started(run)
            # What a killed run left is no part of a comparison: it starts over, from its own seed.
            shutil.rmtree(directory.path, ignore_errors=True)
            directory.make()
            await execute(run, directory)
        result = read_run(directory, seed=run.seed, root=folder)
        progress.finished(run, result, again=again)
        results.append(result)
    return results
