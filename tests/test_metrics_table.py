"""The row: columns that never move, a dash for what is undefined, notes for what was special."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from saocli.metrics.record import CONTRACT
from saocli.metrics.table import COLUMNS, header, note, number, row, styled_row

WIDTH = sum(column.width for column in COLUMNS) + 2 * len(COLUMNS)


def record(**changes: Any) -> dict[str, Any]:
    plain = {
        **dict.fromkeys(CONTRACT),
        "step": 11,
        "release": "sao-smoke@11",
        "arm": "sao",
        "noop_reason": None,
        "actor_idle": None,
        "tokens": 297,
        "sao/actor_trained": 1.0,
        "reward/mean": 1.0,
        "reward/rolling": 0.0909,
        "sao/policy_lag_max": 0.0,
        "sao/queue_age_s_mean": 0.12,
        "pg_clipfrac": 0.004,
        "critic/explained_variance_rolling": 0.11,
        "actor/grad_norm": 0.42,
        "critic/grad_norm": 0.37,
        "tokens_per_s": 20.4,
        "time/step_s": 7.94,
    }
    return plain | {key.replace("__", "/"): value for key, value in changes.items()}


def test_the_row_reads_as_its_head_says() -> None:
    assert header() == (
        " step  release         arm        reward (avg)   lag  queue s  clip %      EV"
        "  |g| actor/critic  tokens   tok/s  step s  note"
    )
    assert row(record()) == (
        "   11  sao-smoke@11    sao            1 (0.09)     0      0.1     0.4    0.11"
        "      0.42 / 0.37      297      20     7.9"
    )


def test_undefined_is_a_dash() -> None:
    bare = record(
        **{key.replace("/", "__"): None for key in record() if key in CONTRACT and key != "sao/actor_trained"}
    )
    assert row(bare) == (
        "   11  sao-smoke@11    sao               – (–)     –        –       –       –"
        "         – / –         297       –       –"
    )


@pytest.mark.parametrize(
    "changes, expected",
    [
        ({}, ""),
        ({"actor_idle": "critic_warmup"}, "critic only"),
        ({"actor_idle": "zero_advantage"}, "critic only: zero advantage"),
        ({"sao__actor_trained": 0.0, "noop_reason": "uniform_group"}, "no-op: uniform group"),
        ({"dropped__stale": 2.0, "dropped__lineage": 0.0}, "stale dropped 2"),
        ({"actor_idle": "critic_warmup", "dropped__prefix_mismatch": 1.0}, "critic only, prefix mismatch dropped 1"),
    ],
)
def test_notes(changes: dict[str, Any], expected: str) -> None:
    assert note(record(**changes)) == expected
    assert row(record(**changes))[WIDTH:] == expected


@settings(deadline=None)
@given(st.data())
def test_columns_never_jump(data: st.DataObject) -> None:
    floats = st.one_of(st.none(), st.floats(allow_nan=True, allow_infinity=True))
    wild = {key: data.draw(floats) for key in CONTRACT} | {
        "step": data.draw(st.integers(1, 10**9)),
        "tokens": data.draw(st.integers(0, 10**12)),
        "release": data.draw(st.text("abc-@", min_size=1, max_size=40)),
        "arm": data.draw(st.sampled_from(["sao", "running_mean"])),
        "noop_reason": "x",
    }
    line = row(wild)
    assert cell_len(line) >= WIDTH
    assert line[WIDTH - 2 : WIDTH + 5] == "  no-op"
    assert styled_row(wild).plain == line


def test_number_gives_up_decimals_before_digits() -> None:
    assert [number(x, 5, 2) for x in (0.5, 123.456, 12345.6, 1234567.0, 1e12, -1e12)] == [
        "0.50",
        "123.5",
        "12346",
        "1235k",
        "1000G",
        "#####",
    ]


def test_colour_follows_no_color(monkeypatch: pytest.MonkeyPatch) -> None:
    def shown() -> str:
        console = Console(force_terminal=True, width=200, color_system="standard")
        with console.capture() as capture:
            console.print(styled_row(record(actor_idle="critic_warmup")))
        return capture.get()

    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[33m" in shown()
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[33m" not in shown()
