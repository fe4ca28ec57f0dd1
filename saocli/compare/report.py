"""The files that a comparison leaves: report.md for people, report.json and rollouts.csv for programs, curve.png."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from saocli.compare.chart import write_png
from saocli.compare.document import markdown
from saocli.compare.results import ArmResult, Comparison, RunResult
from saocli.compare.stats import Difference
from saocli.compare.summary import Summary, summarize, summarize_runs
from saocli.compare.verdict import flags, sentence

CSV_COLUMNS = (
    "label", "arm", "seed", "index", "problem", "task", "attempt", "score", "tokens", "truncated", "state", "reason",
    "step", "at_s",
)  # fmt: skip


def write_report(comparison: Comparison, found: Sequence[Difference], folder: Path, command: str) -> list[Path]:
    """Write the report's files and return their paths; curve.png only where matplotlib is installed.

    `found` are its differences, `command` is the line that made it. Each file is replaced whole: a reader never sees
    half of one.
    """
    png = folder / "curve.png"
    partial = _partial(png)
    drawn = write_png(comparison, partial)
    if drawn:
        partial.replace(png)
    verdict = [sentence(one) for one in found]
    texts = {
        "report.md": markdown(comparison, command, verdict, chart=png.name if drawn else None),
        "report.json": json.dumps(document(comparison, command, found), indent=2, ensure_ascii=False, allow_nan=False)
        + "\n",
        "rollouts.csv": _csv(comparison),
    }
    for name, text in texts.items():
        partial = _partial(folder / name)
        partial.write_text(text, encoding="utf-8")
        partial.replace(folder / name)
    return [folder / "report.md", *([png] if drawn else []), folder / "report.json", folder / "rollouts.csv"]


def _partial(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}")


def document(comparison: Comparison, command: str, found: Sequence[Difference]) -> dict[str, Any]:
    """report.json: everything, with whatever depends on the machine's speed under `timing` and nowhere else."""
    summaries = summarize(comparison)
    return {
        "conf": comparison.conf,
        "description": comparison.description,
        "command": command,
        "rollouts_per_arm_and_seed": comparison.rollouts,
        "seeds": list(comparison.seeds),
        "arms": [_arm(comparison, arm, summary) for arm, summary in zip(comparison.arms, summaries, strict=True)],
        "differences": [asdict(one) for one in found],
        "verdict": [sentence(one) for one in found],
        "flags": flags(comparison),
        "tuning": [asdict(one) for one in comparison.tuning],
        "timing": {
            summary.label: _timing(arm, summary) for arm, summary in zip(comparison.arms, summaries, strict=True)
        },
    }


def _arm(comparison: Comparison, arm: ArmResult, summary: Summary) -> dict[str, Any]:
    runs = zip(arm.runs, summarize_runs(comparison, arm), strict=True)
    return {
        "label": arm.label,
        "arm": arm.arm,
        "settings": list(arm.settings),
        **_numbers(summary),
        "runs": [{"seed": run.seed, "path": run.path, **_numbers(own), **_details(run)} for run, own in runs],
    }


def _numbers(summary: Summary) -> dict[str, Any]:
    fields = asdict(summary)
    del fields["label"], fields["timing"]
    return fields


def _details(run: RunResult) -> dict[str, Any]:
    return {
        "base_digest": run.base_digest,
        "dropped_by_reason": dict(sorted(run.dropped.items())),
        "held_out": [asdict(held) | {"rate": held.rate} for held in run.held_out],
        "rewards": run.rewards,
    }


def _timing(arm: ArmResult, summary: Summary) -> dict[str, Any]:
    runs = [{"seed": run.seed, "start_s": run.start_s, "play_s": run.play_s, "eval_s": run.eval_s} for run in arm.runs]
    return asdict(summary.timing) | {"runs": runs}


def _csv(comparison: Comparison) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, CSV_COLUMNS, lineterminator="\n")
    writer.writeheader()
    for arm in comparison.arms:
        for run in arm.runs:
            for rollout in run.rollouts:
                row = asdict(rollout) | {"at_s": round(rollout.at_s, 3)}
                writer.writerow({"label": arm.label, "arm": arm.arm, "seed": run.seed} | row)
    return text.getvalue()
