"""The columns of a comparison's tables: title with unit, cell, and what it means."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from saocli.compare.results import Comparison
from saocli.compare.summary import Change, Summary, TaskScore
from saocli.metrics.table import UNDEFINED, number

# More tasks than these are one column.
TASK_COLUMNS = 4
TASK_TITLE = 14


@dataclass(frozen=True, kw_only=True, slots=True)
class Column:
    """One column; `–` where a value is undefined."""

    title: str
    cell: Callable[[Summary], str]
    meaning: str
    left: bool = False


ARM = Column(
    title="arm",
    cell=lambda summary: summary.label,
    meaning="`base` is the untrained model on the same problems; `name#2` is an arm's second entry",
    left=True,
)


def outcome_columns(comparison: Comparison, summaries: Sequence[Summary], *, each_task: bool = True) -> list[Column]:
    """What came out. Tasks have a column each unless there are more than four, or `each_task` is off."""
    tasks = [score.task for score in summaries[0].tasks]
    return [
        ARM,
        Column(
            title="rollouts",
            cell=lambda summary: number(summary.rollouts, 8),
            meaning="attempts that were graded, over all seeds",
        ),
        Column(
            title="reward",
            cell=lambda summary: number(summary.reward.mean if summary.reward else None, 7, 3),
            meaning="mean score of all these rollouts, the earliest included: it rewards learning early, too",
        ),
        Column(
            title="95% interval",
            cell=_interval,
            meaning="of that mean, as if rollouts were independent draws",
        ),
        *(
            [_task_column(index, task) for index, task in enumerate(tasks)]
            if each_task and len(tasks) <= TASK_COLUMNS
            else [_TASKS]
        ),
        *_held_out_columns(comparison, summaries),
    ]


def _interval(summary: Summary) -> str:
    if summary.reward is None or summary.reward.low is None:
        return UNDEFINED
    return f"{number(summary.reward.low, 7, 3)} – {number(summary.reward.high, 7, 3)}"


def _task_column(index: int, task: str) -> Column:
    return Column(
        title=task if len(task) <= TASK_TITLE else "…" + task[1 - TASK_TITLE :],
        cell=lambda summary: task_cell(summary.tasks[index]),
        meaning="rollouts of this task that scored 1, of all of them; their mean score where scores are graded",
    )


_TASKS = Column(
    title="tasks > 0",
    cell=lambda summary: f"{sum(score.total > 0 for score in summary.tasks)}/{len(summary.tasks)}",
    meaning="tasks on which at least one rollout scored above 0, of all tasks",
)


def task_cell(score: TaskScore) -> str:
    """`9/16` where every score is 0 or 1, else the mean."""
    if score.rollouts and score.counted:
        return f"{score.total:.0f}/{score.rollouts}"
    return number(score.mean, 6, 2)


def _held_out_columns(comparison: Comparison, summaries: Sequence[Summary]) -> list[Column]:
    """None for an evaluation that was never made."""
    made = [held for arm in comparison.arms for run in arm.runs for held in run.held_out]
    temperature = next((held.temperature for held in made if held.temperature > 0), 1.0)
    samples = " or ".join(str(count) for count in sorted({held.samples for held in made}))
    columns = [
        Column(
            title=f"held-out T={temperature:g}",
            cell=lambda summary: _change(summary.sampled),
            meaning=f"mean score on {samples} fresh problems per seed at temperature {temperature:g}, before → after "
            "training; the base has no after",
        ),
        Column(
            title="held-out greedy",
            cell=lambda summary: _change(summary.greedy),
            meaning="the same at temperature 0",
        ),
    ]
    measured = [
        any(change.before is not None or change.after is not None for change in changes)
        for changes in ([summary.sampled for summary in summaries], [summary.greedy for summary in summaries])
    ]
    return [column for column, is_measured in zip(columns, measured, strict=True) if is_measured]


def _change(change: Change) -> str:
    before, after = number(change.before, 5, 2), number(change.after, 5, 2)
    return f"{before} → {after}"


PROCESS_COLUMNS = (
    ARM,
    Column(
        title="commits",
        cell=lambda summary: number(summary.commits, 7),
        meaning="steps that trained something, critic-only ones included",
    ),
    Column(
        title="no-op",
        cell=lambda summary: number(summary.noops, 5),
        meaning="steps that could train nothing, such as a group whose scores were all equal",
    ),
    Column(
        title="lag",
        cell=lambda summary: number(summary.policy_lag, 5, 2),
        meaning="policy lag, mean over steps: weight updates between sampling a token and training on it",
    ),
    Column(
        title="clip %",
        cell=lambda summary: number(_scaled(summary.clip_fraction, 100.0), 6, 2),
        meaning="action tokens that the ratio bounds left out; each step weighted by its tokens",
    ),
    Column(
        title="EV",
        cell=lambda summary: number(summary.explained_variance, 6, 2),
        meaning="the critic's explained variance over the run's last rollouts, mean over seeds",
    ),
    Column(
        title="tokens",
        cell=lambda summary: number(summary.tokens, 7),
        meaning="of the scored rollouts' responses, over all seeds",
    ),
    Column(
        title="dropped %",
        cell=lambda summary: number(_scaled(summary.dropped_share, 100.0), 5, 1),
        meaning="scored rollouts that were never trained",
    ),
    Column(
        title="play m:ss",
        cell=lambda summary: clock(summary.timing.play_s),
        meaning="wall-clock of attempts and training, over all seeds; without start-up and evaluation",
    ),
    Column(
        title="rollouts/min",
        cell=lambda summary: number(summary.timing.rollouts_per_min, 7, 1),
        meaning="scored rollouts per minute of play",
    ),
    Column(
        title="tok/s",
        cell=lambda summary: number(summary.timing.tokens_per_s, 6, 1),
        meaning="response tokens per second of play",
    ),
)


def _scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def clock(seconds: float) -> str:
    """`3:44`, or `1:03:44` from an hour on."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
