"""The face of a comparison while it runs: a bar for the run at hand and one for the whole; in a pipe a line per run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from saocli.compare.plan import Plan, PlannedRun
from saocli.compare.results import RunResult
from saocli.driver import Attempt, Evaluation
from saocli.types import Release


class CompareProgress:
    """Tells how far a comparison is, and gives each run a quiet view of its own."""

    def __init__(self, console: Console, plan: Plan) -> None:
        self._console = console
        tuning = sum(len(plan.tuning_runs(label)) for label in plan.labels)
        self._runs = len(plan.labels) * len(plan.seeds) + tuning
        self._rollouts = plan.config.compare.rollouts
        every = [*plan.untuned, *(run for label in plan.labels for run in plan.tuning_runs(label))]
        self._title = max(len(run.title) for run in every)
        self._done = 0
        self._bars = Progress(
            TextColumn("  {task.description:<28}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("rollouts"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            TextColumn("[dim]{task.fields[note]}"),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._all = self._bars.add_task("comparison", total=self._runs * self._rollouts, note="")
        self._one = self._bars.add_task("", total=self._rollouts, note="")

    @contextmanager
    def running(self) -> Iterator[None]:
        """Holds the bars on a terminal."""
        with self._bars:
            yield

    def started(self, run: PlannedRun) -> None:
        self._bars.reset(self._one, description=f"{run.label}  {run.title}", total=self._rollouts)

    def finished(self, run: PlannedRun, result: RunResult, *, again: bool) -> None:
        self._done += 1
        self._bars.update(self._all, completed=self._done * self._rollouts)
        rewards = result.rewards
        mean = f"{sum(rewards) / len(rewards):.3f}" if rewards else "–"
        held = "".join(f"  held-out {one.rate:.3f}" for one in result.held_out if one.temperature > 0)
        seconds = "made before" if again else f"{result.start_s + result.play_s + result.eval_s:.0f} s"
        self._console.print(
            Text(f"  {self._done:>3}/{self._runs}  {run.label:<14} {run.title:<{self._title}}  ", style="dim").append(
                f"reward {mean} over {len(rewards)} rollouts  {len(result.steps)} commits{held}  ({seconds})",
                style="not dim",
            ),
            soft_wrap=True,
        )

    def view(self) -> RunProgress:
        """Who is told what happens inside one run."""
        return RunProgress(self._bars, self._all, self._one, live=self._console.is_terminal)


class RunProgress:
    """A run's view: what it does now, and each attempt as one more rollout."""

    def __init__(self, bars: Progress, whole: TaskID, one: TaskID, *, live: bool) -> None:
        self.live = live
        self._bars = bars
        self._whole = whole
        self._one = one

    @contextmanager
    def phase(self, name: str, what: str) -> Iterator[QuietPhase]:
        self.status(f"starting the {name}")
        yield QuietPhase(self, name)

    def status(self, text: str) -> None:
        self._bars.update(self._one, note=text)

    def say(self, text: str, style: str = "") -> None:
        self._bars.console.print(Text(text, style=style), soft_wrap=True)

    def step(self, release: Release, record: Mapping[str, Any]) -> None:
        reward = record["reward/rolling"]
        self.status(f"step {release.step}" + (f" · reward {reward:.2f}" if reward is not None else ""))

    def attempt_started(self, problem: str, number: int, of: int) -> None:
        """The bar counts finished attempts."""

    def attempt(self, attempt: Attempt) -> None:
        self._bars.advance(self._one)
        self._bars.advance(self._whole)

    def evaluation(self, result: Evaluation) -> None:
        self.status(f"held-out {result.passed / result.samples:.3f}")


class QuietPhase:
    """A part that is starting."""

    def __init__(self, view: RunProgress, name: str) -> None:
        self._view = view
        self._name = name
        self.what = ""
        self.detail = ""

    def progress(self, text: str) -> None:
        self._view.status(f"{self._name}: {text}")
