"""The report's files: complete, the same for the same seeds, whole at any moment."""

from __future__ import annotations

import csv
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from comparekit import arm, comparison, rollouts, step

from saocli.compare.report import write_report
from saocli.compare.results import Comparison, HeldOut, RunResult, Tuning
from saocli.compare.verdict import differences

SCORES = {seed: (1.0, 0.0, 1.0, 1.0, 0.0, 1.0) for seed in (1, 2, 3)}
COMMAND = "sao compare conf=compare --arms sao"


def written(made: Comparison, folder: Path, command: str) -> list[Path]:
    return write_report(made, differences(made), folder, command)


def full(**fields: Any) -> Comparison:
    tuning = Tuning(label="sao", seed=99, tried=(("trainer.actor_lr=1e-4", 0.4),), chosen="trainer.actor_lr=1e-4")
    sao = arm("sao", SCORES, held_out=(HeldOut(step=6, temperature=1.0, samples=100, passed=81.0),), **fields)
    return comparison(arm("base", SCORES), sao, tuning=[tuning])


def slower(made: Comparison) -> Comparison:
    def slow(run: RunResult) -> RunResult:
        later = tuple(replace(one, at_s=one.at_s * 7) for one in run.rollouts)
        return replace(run, start_s=9.0, play_s=7 * run.play_s, eval_s=0.1, rollouts=later)

    return replace(made, arms=tuple(replace(one, runs=tuple(map(slow, one.runs))) for one in made.arms))


def test_the_files_and_nothing_else(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    for _ in range(2):  # the second one replaces the first
        paths = written(full(), tmp_path, COMMAND)
    assert [path.name for path in paths] == ["report.md", "curve.png", "report.json", "rollouts.csv"]
    assert sorted(tmp_path.iterdir()) == sorted(paths)


def test_json_holds_the_numbers_of_every_arm_and_seed(tmp_path: Path) -> None:
    written(full(dropped={"stale": 1}), tmp_path, COMMAND)
    report = json.loads((tmp_path / "report.json").read_text())
    base, sao = report["arms"]
    assert (report["command"], report["seeds"], report["rollouts_per_arm_and_seed"]) == (COMMAND, [1, 2, 3], 6)
    assert (sao["label"], sao["rollouts"], sao["commits"], sao["dropped"]) == ("sao", 18, 18, 3)
    assert sao["sampled"] == {"before": pytest.approx(0.4), "after": pytest.approx(0.81)}
    assert base["commits"] is None
    assert [run["seed"] for run in sao["runs"]] == [1, 2, 3]
    assert sao["runs"][0]["rewards"] == list(SCORES[1])
    assert sao["runs"][0]["dropped_by_reason"] == {"stale": 1}
    assert sao["runs"][0]["held_out"][0]["rate"] == 0.81
    assert report["differences"][0]["name"] == "sao − base"
    assert report["verdict"][0].startswith("sao − base")
    assert report["tuning"][0]["tried"] == [["trainer.actor_lr=1e-4", 0.4]]
    assert report["timing"]["sao"]["runs"][2] == {"seed": 3, "start_s": 5.0, "play_s": 12.0, "eval_s": 3.0}


def test_only_timing_depends_on_the_machine(tmp_path: Path) -> None:
    reports = []
    for name, made in (("one", full()), ("two", slower(full()))):
        (tmp_path / name).mkdir()
        written(made, tmp_path / name, COMMAND)
        reports.append((tmp_path / name / "report.json").read_text())
    documents = [json.loads(text) for text in reports]
    assert documents[0].pop("timing") != documents[1].pop("timing")
    assert json.dumps(documents[0]) == json.dumps(documents[1])  # key order included


def test_the_document_reads_on_its_own(tmp_path: Path) -> None:
    written(full(), tmp_path, COMMAND)
    text = (tmp_path / "report.md").read_text()
    for part in (COMMAND, "Arms side by side", "`sao`: `arm.name=sao`", "seeds 1, 2, 3", "sao − base", "sao · seed 3"):
        assert part in text
    for meaning in ("`no-op`:", "`held-out T=1`:", "`add1`, `larger`, `word`:", "Intervals: Wilson"):
        assert meaning in text
    tables = [line for line in text.splitlines() if line.startswith("|")]
    assert all(line.endswith("|") for line in tables)


def test_many_tasks_have_a_table_of_their_own(tmp_path: Path) -> None:
    scored = rollouts(SCORES[1], tasks=tuple("abcdef"))
    made = comparison(arm("base", SCORES, rollouts=scored), arm("sao", SCORES, rollouts=scored))
    written(made, tmp_path, COMMAND)
    text = (tmp_path / "report.md").read_text()
    assert "## Per task" in text
    assert "| e    |  0/3 | 0/3 |" in text


def test_without_a_picture_the_document_has_a_sketch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert [path.name for path in written(full(), tmp_path, COMMAND)] == [
        "report.md",
        "report.json",
        "rollouts.csv",
    ]
    assert "mean reward so far" in (tmp_path / "report.md").read_text()


def test_csv_has_a_row_per_scored_rollout(tmp_path: Path) -> None:
    written(full(), tmp_path, COMMAND)
    with (tmp_path / "rollouts.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 36
    assert rows[-1] == {
        "label": "sao", "arm": "sao", "seed": "3", "index": "5", "problem": "word-5", "task": "word", "attempt": "1",
        "score": "1.0", "tokens": "10", "truncated": "False", "state": "trained", "reason": "", "step": "6",
        "at_s": "12.0",
    }  # fmt: skip


def test_a_comparison_in_which_nothing_happened_still_has_a_report(tmp_path: Path) -> None:
    written(comparison(arm("base", {1: ()}), arm("sao", {1: ()}, steps=(step(1),))), tmp_path, COMMAND)
    report = json.loads((tmp_path / "report.json").read_text())
    assert [one["reward"] for one in report["arms"]] == [None, None]
    assert report["differences"] == []
