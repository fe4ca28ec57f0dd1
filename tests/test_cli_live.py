"""What a run prints: aligned rows, and one hint about batches of one."""

from __future__ import annotations

import io
import time
from typing import Any

import pytest
from rich.console import Console
from rich.text import Text

from saocli.cli.live import HINT, RunView
from saocli.metrics.record import CONTRACT
from saocli.types import Operation, Release


def release(step: int) -> Release:
    return Release(
        release_id=f"s@{step}",
        scenario="s",
        step=step,
        operation=Operation.TRAINING,
        current=True,
        parent_release_id=None,
        weight_version=f"s@{step}",
        arm="sao",
        created_at=0.0,
        receipts=(),
        metrics={},
        checkpoint=None,
        digest="0",
    )


def record(step: int, rollouts: int) -> dict[str, Any]:
    extra = {"step": step, "release": f"s@{step}", "arm": "sao", "rollouts": rollouts, "tokens": 8}
    return {**dict.fromkeys(CONTRACT, 0.0), "noop_reason": None, "actor_idle": None, **extra}


def shown(rollouts: int, steps: range) -> list[str]:
    stream = io.StringIO()
    view = RunView(Console(file=stream, width=1000), as_json=False)
    for step in steps:
        view.step(release(step), record(step, rollouts))
    return stream.getvalue().splitlines()


@pytest.mark.parametrize("rollouts, hints", [(1, 1), (4, 0)])
def test_a_long_run_of_single_rollouts_gets_one_hint(rollouts: int, hints: int) -> None:
    assert shown(rollouts, range(98, 205)).count(HINT) == hints


def test_the_head_stands_once_above_its_rows() -> None:
    lines = [line for line in shown(4, range(1, 4)) if line]
    assert lines[0].startswith(" step  release")
    assert [line.split()[0] for line in lines[1:]] == ["1", "2", "3"]
    assert len({line.rindex("0.0") for line in lines[1:]}) == 1


def test_the_live_line_tells_of_every_part_that_is_starting() -> None:
    stream = io.StringIO()
    console = Console(file=stream, width=120, force_terminal=True, _environ={"TERM": "xterm"})
    view = RunView(console, as_json=False)

    def drawn(text: str) -> str:
        """What is drawn once `text` is: the line is alive, so that takes a moment."""
        stream.truncate(stream.seek(0))
        for _ in range(100):
            time.sleep(0.02)
            if text in (plain := Text.from_ansi(stream.getvalue()).plain):
                return plain
        raise AssertionError(plain)

    with view.running(), view.phase("trainer", "megatron") as trainer:
        with view.phase("engine", "embedded") as engine:
            trainer.progress("loading actor")
            engine.progress("loading weights")
            drawn("trainer megatron: loading actor (0 s)   engine embedded: loading weights (0 s)")
        assert "loading weights" not in drawn("trainer megatron: loading actor (0 s)")
