"""What a run prints: aligned rows, and one hint about batches of one."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

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
