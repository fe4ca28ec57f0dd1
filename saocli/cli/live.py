"""The terminal face of a run: the header's phases, one row a step, and a live last line.

On a terminal the last line is alive; in a pipe there are plain lines only; with --json each event is one JSON line on
stdout and everything for people goes to stderr.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from saocli.driver import Attempt, Evaluation
from saocli.metrics.table import header, styled_row
from saocli.types import Release

HINT_STEP = 100
HINT = "  hint: one rollout a step is noisy; batch_size=4 trainer.global_batch_size=4 learns more from as many rollouts"


class RunView:
    """Prints what happens in a run."""

    def __init__(self, console: Console, *, as_json: bool) -> None:
        self._console = console
        self._json = as_json
        self._live: Live | None = None
        self._rows = 0
        self._status = ""
        self._note = ""
        self._phases: list[Phase] = []  # that go on now

    @property
    def live(self) -> bool:
        """Whether anyone sees what `status` says."""
        return self._live is not None

    @contextmanager
    def running(self) -> Iterator[None]:
        """Holds the live line on a terminal."""
        if not self._console.is_terminal:
            yield
            return
        with Live(console=self._console, refresh_per_second=8, transient=True) as live:
            self._live = live
            try:
                yield
            finally:
                self._live = None

    def title(self, text: str, **fields: Any) -> None:
        self._console.print(Text(text, style="bold"))
        self._emit("start", **fields)

    @contextmanager
    def phase(self, name: str, what: str) -> Iterator[Phase]:
        """One header line: alive while it lasts, printed with its time once done."""
        phase = Phase(name, what, self._tell_phases)
        self._phases.append(phase)
        self._tell_phases()
        try:
            yield phase
        finally:
            self._phases.remove(phase)
            self._tell_phases()
        seconds = time.monotonic() - phase.started
        line = Text(f"  {name:<8} ").append(f"{phase.what:<38}", style="cyan").append(f" {phase.detail:<44}")
        self._console.print(line.append(f"{seconds:6.1f} s ", style="dim").append("✓", style="green"), soft_wrap=True)
        self._emit("phase", name=name, what=phase.what, detail=phase.detail, seconds=round(seconds, 3))

    def step(self, release: Release, record: Mapping[str, Any]) -> None:
        if self._rows == 0:
            self._console.print()
            self._console.print(Text(header(), style="bold"), soft_wrap=True)
        self._rows += 1
        self._console.print(styled_row(record), soft_wrap=True)
        if record["step"] == HINT_STEP and record["rollouts"] == 1:
            self.say(HINT, style="dim")
        self._emit("step", **record)

    def evaluation(self, result: Evaluation) -> None:
        rate = result.passed / result.samples
        how = " greedily" if result.temperature == 0 else ""
        text = f"  held-out after step {result.step}{how}: {rate:.3f}  "
        text += f"({result.passed:g} of {result.samples} fresh samples"
        extra = f", {result.errors} ungraded" if result.errors else ""
        self._console.print(
            Text(f"{text}, {result.truncated} truncated{extra}, {result.seconds:.0f} s)", style="magenta"),
            soft_wrap=True,
        )
        self._emit(
            "evaluation",
            step=result.step,
            temperature=result.temperature,
            samples=result.samples,
            mean_score=rate,
            truncated=result.truncated,
            errors=result.errors,
            seconds=round(result.seconds, 2),
        )

    def attempt_started(self, problem: str, number: int, of: int) -> None:
        self._note = f"{problem}  attempt {number}/{of}"
        self._refresh()

    def attempt(self, attempt: Attempt) -> None:
        if attempt.error is not None:
            number = f"{attempt.number}/{attempt.of}"
            self.say(f"  {attempt.problem} attempt {number}: not graded: {attempt.error}", style="yellow")

    def status(self, text: str) -> None:
        """Show what is going on right now in the live line."""
        self._status = text
        self._refresh()

    def say(self, text: str, style: str = "", **fields: Any) -> None:
        self._console.print(Text(text, style=style), soft_wrap=True)
        if fields:
            self._emit(**fields)

    def end(self, text: str, **fields: Any) -> None:
        self._console.print()
        self._console.print(Text(text), soft_wrap=True)
        self._emit("end", **fields)

    def _tell_phases(self) -> None:
        self.status("   ".join(phase.doing for phase in self._phases))

    def _refresh(self) -> None:
        if self._live is not None:
            line = Table.grid(expand=True)
            line.add_column()
            line.add_column(justify="right", style="dim")
            line.add_row(Spinner("dots", text=Text(self._status, style="dim")), self._note)
            self._live.update(line)

    def _emit(self, event: str, **fields: Any) -> None:
        if self._json:
            print(json.dumps({"event": event, **fields}, allow_nan=False), flush=True)


class Phase:
    """A header line in the making."""

    def __init__(self, name: str, what: str, changed: Callable[[], None]) -> None:
        self.started = time.monotonic()
        self.name = name
        self.what = what
        self.detail = ""
        self.doing = f"{name} {what} …"
        self._changed = changed

    def progress(self, text: str) -> None:
        """Say what the phase is doing now."""
        self.doing = f"{self.name} {self.what}: {text} ({time.monotonic() - self.started:.0f} s)"
        self._changed()
