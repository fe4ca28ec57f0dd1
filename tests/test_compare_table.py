"""What a person sees: aligned columns, `–` for undefined, nothing folded, and what is said once only."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from comparekit import TASKS, arm, comparison, rollouts, step
from rich.console import Console

from saocli.compare.columns import PROCESS_COLUMNS, clock, outcome_columns
from saocli.compare.results import Comparison, HeldOut, Tuning
from saocli.compare.summary import summarize
from saocli.compare.table import grid, print_comparison, tuning_note
from saocli.compare.verdict import differences

SCORES = {seed: (1.0, 0.0, 1.0, 1.0, 0.0, 1.0) for seed in (1, 2, 3)}
AFTER = (HeldOut(step=6, temperature=1.0, samples=100, passed=81.0),)


def printed(made: Comparison, *, width: int = 120, terminal: bool = False, paths: tuple[Path, ...] = ()) -> str:
    out = io.StringIO()
    console = Console(file=out, width=width, force_terminal=terminal, highlight=False, color_system=None)
    print_comparison(made, differences(made), console, paths)
    return out.getvalue()


def lines(made: Comparison, *, process: bool = False) -> list[str]:
    summaries = summarize(made)
    columns = PROCESS_COLUMNS if process else outcome_columns(made, summaries)
    return [line.plain for line in grid(columns, summaries)]


def words(line: str) -> str:
    return " ".join(line.split())


def test_the_outcome_has_counts_intervals_and_the_change_on_fresh_problems() -> None:
    head, base, sao = lines(comparison(arm("base", SCORES), arm("sao", SCORES, held_out=AFTER)))
    assert words(head) == "arm rollouts reward 95% interval add1 larger word held-out T=1"
    assert words(base) == "base 18 0.667 0.437 – 0.837 6/6 0/6 6/6 0.40 → –"
    assert words(sao).endswith("6/6 0.40 → 0.81")
    assert len({len(line) for line in (head, base, sao)}) == 1


def test_the_process_shows_undefined_values_as_dashes() -> None:
    _, base, sao = lines(comparison(arm("base", SCORES), arm("sao", SCORES)), process=True)
    assert words(base) == "base – – – – – 180 – 0:36 30.0 5.0"
    assert words(sao) == "sao 18 0 – – – 180 0.0 0:36 30.0 5.0"


def test_defined_metrics_have_their_units() -> None:
    known = {"pg_clipfrac": 0.002, "sao/policy_lag_mean": 0.25, "critic/explained_variance_rolling": 0.18}
    sao = arm("sao", SCORES, steps=(step(1, **known), step(2, operation="noop")), dropped={"stale": 3})
    line = lines(comparison(arm("base", SCORES), sao), process=True)[2]
    assert words(line).startswith("sao 3 3 0.25 0.20 0.18 180 50.0 ")


def test_graded_tasks_show_means_and_a_lone_rollout_no_interval() -> None:
    head, base, sao = lines(comparison(arm("base", {1: (0.5,)}), arm("sao", {1: (0.25,)})))
    assert words(base) == "base 1 0.500 – 0.50 0.40 → –"
    assert words(sao) == "sao 1 0.250 – 0.25 0.40 → –"
    assert words(head).endswith("interval add1 held-out T=1")


@pytest.mark.parametrize(("tasks", "width"), [(tuple("abcdef"), 160), (TASKS, 70)])
def test_many_tasks_or_a_narrow_console_make_one_column(tasks: tuple[str, ...], width: int) -> None:
    scored = rollouts(SCORES[1], tasks=tasks, trained=False)
    text = printed(comparison(arm("base", SCORES, rollouts=scored), arm("sao", SCORES, rollouts=scored)), width=width)
    assert "tasks > 0" in text
    solved = len({tasks[index % len(tasks)] for index in (0, 2, 3, 5)})
    assert f"{solved}/{len(tasks)}" in text


@pytest.mark.parametrize("width", [100, 130, 160])
def test_tables_fit_the_usual_consoles(width: int) -> None:
    label = "running_mean#2"
    text = printed(comparison(arm("base", SCORES), arm(label, SCORES, held_out=AFTER)), width=width, terminal=True)
    assert max(len(line) for line in text.splitlines()) <= width
    assert [line.split()[0] for line in text.splitlines() if line.startswith(f" {label} ")][:2] == [label] * 2


def test_a_pipe_gets_no_escapes_and_no_sketch_and_a_terminal_gets_one() -> None:
    made = comparison(arm("base", SCORES), arm("sao", SCORES))
    piped, shown = printed(made), printed(made, terminal=True)
    assert "\x1b" not in piped
    assert "mean reward so far" not in piped
    assert "mean reward so far" in shown
    assert "sao − base" in piped


def test_flags_and_paths_come_last_and_a_missing_picture_says_how_to_get_it() -> None:
    made = comparison(arm("base", SCORES), arm("sao", {1: SCORES[1], 2: SCORES[2], 3: (1.0,)}))
    text = printed(made, paths=(Path("x/report.md"), Path("x/report.json")))
    assert "! sao has fewer scored rollouts" in text
    assert text.endswith("\nx/report.md  x/report.json\nno curve.png without matplotlib: pip install 'saocli[plots]'\n")
    assert "pip install" not in printed(made, paths=(Path("x/curve.png"),))


def test_tuning_shows_every_try_and_that_arms_had_equally_many() -> None:
    tried = (("trainer.actor_lr=1e-4", 0.41), ("trainer.actor_lr=1e-3", 0.52))
    tuning = [Tuning(label=label, seed=99, tried=tried, chosen=tried[1][0]) for label in ("sao", "grpo")]
    made = comparison(arm("base", SCORES), arm("sao", SCORES), arm("grpo", SCORES), tuning=tuning)
    assert tuning_note(made).startswith("tries: 2 for each arm, one run each on seed 99")
    text = [line.split() for line in printed(made).splitlines()]
    assert ["sao", "trainer.actor_lr=1e-4", "0.410"] in text
    assert ["grpo", "trainer.actor_lr=1e-3", "0.520", "chosen"] in text
    unequal = comparison(*made.arms, tuning=[tuning[0], Tuning(label="grpo", seed=99, tried=tried[:1], chosen="")])
    assert tuning_note(unequal).startswith("tries: 2 for sao, 1 for grpo")


def test_clocks() -> None:
    assert [clock(seconds) for seconds in (0.4, 59.6, 224, 3824)] == ["0:00", "1:00", "3:44", "1:03:44"]
