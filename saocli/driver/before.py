"""What an earlier session of a driven run did already, as the records tell."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from saocli.config.run import RunConfig
from saocli.driver.attempt import Attempt, report_id
from saocli.metrics.sinks import read_records, rewrite
from saocli.store.entries import ReportEntry, State
from saocli.store.records import Records
from saocli.tasks.sets import load_tasks

FINAL = ("trained", "dropped", "recorded")


def made_before(records: Records, config: RunConfig, lines: Iterable[Mapping[str, Any]]) -> list[Attempt]:
    """The attempts at the conf's tasks that were reported, in that order, and those that could not be graded.

    Of the latter only their `lines` in attempts.jsonl tell. A leased one counts as queued.
    """
    families = {
        problem.id: str(problem.source.get("family", problem.id))
        for problem in load_tasks(config.tasks, seed=config.seed)
    }
    made = [Attempt(text="", **line) for line in lines if line["state"] is None]
    for entry in records.reports(config.scenario):
        said = entry.report.metadata
        problem, number = said.get("task"), said.get("attempt")
        if not (isinstance(problem, str) and problem in families and isinstance(number, int)):
            continue
        if entry.report.id != report_id(config.scenario, problem, number) or not entry.report.references:
            continue
        receipt = records.entry(entry.report.references[0])
        assert receipt is not None, "a report names recorded receipts"
        made.append(
            Attempt(
                problem=problem,
                task=families[problem],
                number=number,
                of=config.tasks.attempts,
                receipt=receipt.receipt,
                text=receipt.text,
                completion_tokens=receipt.output_tokens,
                finish_reason=receipt.finish_reason.value,
                at_s=said["at_s"],
                score=entry.report.score,
                state=_state(entry),
                reason=entry.standing.reason,
                release_id=entry.standing.release_id,
                step=entry.standing.step,
            )
        )
    return made


def missing(before: Sequence[Attempt], attempts: int) -> Iterator[str]:
    """The problems of attempts that did not train and were not made up for by another one, once for each."""
    lost = Counter(one.problem for one in before if one.state not in ("trained", "queued"))
    lost.subtract(one.problem for one in before if one.number > attempts)
    return lost.elements()


def only_final(path: Path) -> list[dict[str, Any]]:
    """Take the attempts that were still queued out of attempts.jsonl; returns the lines of the others."""
    lines = list(read_records(path))
    final = [line for line in lines if line["state"] in (*FINAL, None)]
    if len(final) < len(lines):
        rewrite(path, final)
    return final


def _state(entry: ReportEntry) -> str:
    return State.QUEUED.value if entry.standing.state is State.LEASED else entry.standing.state.value
