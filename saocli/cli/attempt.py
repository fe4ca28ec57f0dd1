"""`sao attempt`: attempts as any outside client makes them."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from saocli.config.tasks import TasksConfig
    from saocli.driver import Attempt
    from saocli.types import Problem

TOKENS = "Default: the live run's conf."


def attempt(
    tokens: Annotated[list[str] | None, typer.Argument(metavar="[conf=NAME] [key=value]…", help=TOKENS)] = None,
    task: Annotated[str | None, typer.Option("--task", help="Only the problem with this id.")] = None,
    attempts: Annotated[int | None, typer.Option("-n", help="Attempts per problem.", min=1)] = None,
    prompt: Annotated[str | None, typer.Option(help="One prompt of your own; - reads stdin. Not graded.")] = None,
    concurrency: Annotated[int | None, typer.Option(help="Attempts in flight.", min=1)] = None,
    no_report: Annotated[bool, typer.Option("--no-report", help="Attempt only: no grading, no report.")] = False,
    url: Annotated[str | None, typer.Option(help="The service's address.")] = None,
    conf_dir: Annotated[str | None, typer.Option(help="A folder of confs in front of the shipped one.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="JSON lines on stdout, one an attempt.")] = False,
) -> None:
    """Make attempts: the conf's tasks in order, graded and reported, each waiting until trained."""
    from saocli.cli.output import out, print_json
    from saocli.cli.service import find_service
    from saocli.cli.tokens import load_config
    from saocli.config.tasks import TasksConfig, TaskSource
    from saocli.errors import ConfigError
    from saocli.tasks.sets import load_tasks
    from saocli.types import Problem

    service = find_service(url)
    if prompt is not None and not tokens and service.run is None:
        seed, tasks = 0, TasksConfig(source=TaskSource.INLINE)
    else:
        config = load_config(tokens or [], conf_dir=conf_dir, run=service.run)
        seed, tasks = config.seed, config.tasks
    if prompt is not None:
        text = sys.stdin.read() if prompt == "-" else prompt
        problems = [Problem(id="prompt", messages=({"role": "user", "content": text},), answer="", grader="none")]
        no_report = True
    else:
        problems = load_tasks(tasks, seed=seed)
    if task is not None:
        names = [problem.id for problem in problems]
        problems = [problem for problem in problems if problem.id == task]
        if not problems:
            raise ConfigError(f"no task {task!r}", fix=f"there are: {' · '.join(names[:20])}")
    tasks = replace(
        tasks,
        attempts=attempts or (1 if prompt is not None else tasks.attempts),
        concurrency=concurrency or tasks.concurrency,
    )

    def show(done: Attempt) -> None:
        if as_json:
            print_json(asdict(done))
            return
        score = "–" if done.score is None else f"{done.score:g}"
        graded = "reported" if done.score is not None else "not reported"
        outcome = done.error or done.release_id or done.reason or graded
        cells = (
            f"{done.problem:<12}",
            f"{done.number}/{done.of}",
            f"score {score:<5}",
            f"{done.completion_tokens:>5} tokens",
        )
        out.print("  ".join((*cells, f"{outcome:<20}", done.receipt)))
        if prompt is not None:
            out.print(done.text, markup=False)

    asyncio.run(_play(service, problems, tasks, seed=seed, report=not no_report, show=show))


async def _play(
    service: Any, problems: list[Problem], tasks: TasksConfig, *, seed: int, report: bool, show: Any
) -> None:
    from saocli.client import Client
    from saocli.driver import Driver
    from saocli.tasks.graders.pool import GraderPool

    client = Client(service.url, service.token, scenario=service.trained_scenario())
    pool = GraderPool(workers=min(2, tasks.concurrency), timeout_s=tasks.grade_timeout_s)
    try:
        await Driver(client, pool, tasks, seed=seed, report=report, on_attempt=show).play(problems)
    finally:
        await pool.close()
        await client.close()
