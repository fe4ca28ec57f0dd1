"""`sao compare`: train arms from one checkpoint on one budget, and say what the difference is worth."""

from __future__ import annotations

import asyncio
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from saocli.cli.output import Json

if TYPE_CHECKING:
    from saocli.compare.plan import Plan, PlannedRun, Request
    from saocli.compare.results import Comparison
    from saocli.store.run import RunDirectory

DEFAULT_CONF = "compare"
SHORT = {"rollouts": "compare.rollouts", "seeds": "compare.seeds"}
SWEPT = {"lr": "trainer.actor_lr"}


def compare(
    tokens: Annotated[
        list[str] | None, typer.Argument(metavar="[ARM…] [conf=NAME] [key=value]…", help="More arms, conf, overrides.")
    ] = None,
    arms: Annotated[list[str] | None, typer.Option("--arms", help="Arms, by name; the base comes with them.")] = None,
    sweep: Annotated[
        str | None, typer.Option(help="key=v1,v2,…: each arm first picks its best value on a seed apart; lr is known.")
    ] = None,
    resume: Annotated[str | None, typer.Option(help="Go on with this comparison's folder.")] = None,
    fail_under: Annotated[
        list[str] | None, typer.Option(help="'sao>base', 'sao>grpo_dis+0.05', 'sao>0.5': exit 1 unless it holds.")
    ] = None,
    conf_dir: Annotated[str | None, typer.Option(help="A folder of confs in front of the shipped one.")] = None,
    as_json: Json = False,
) -> None:
    """Train arms from the same checkpoint, prompts, budget and seeds, next to the untrained base."""
    from saocli.cli.service import RUNS
    from saocli.compare.gates import check_gates, parse_gate
    from saocli.compare.plan import make_plan
    from saocli.compare.play import read_request, write_request
    from saocli.errors import ConfigError
    from saocli.store.run import RunDirectory

    if resume and (tokens or arms or sweep or conf_dir):
        raise ConfigError("--resume goes on with what was asked for then", fix="leave arms, conf and overrides out")
    request = read_request(Path(resume)) if resume else _request(tokens or [], arms or [], sweep, conf_dir)
    plan = make_plan(request)
    gates = [parse_gate(text, plan.labels) for text in fail_under or []]
    directory = RunDirectory(Path(resume)) if resume else RunDirectory.reserve(RUNS, plan.config.name)
    write_request(directory.path, request)
    with directory.lock(), _resumable(directory):
        comparison = _play(plan, directory, as_json=as_json)
        _show(comparison, directory, request.command, as_json=as_json)
    if failed := check_gates(comparison, gates):
        from saocli.errors import RunError

        raise RunError("; ".join(failed), fix="the comparison itself is complete: its report says more")


@contextmanager
def _resumable(directory: RunDirectory) -> Iterator[None]:
    """Whatever ends a comparison early, say how it goes on: its finished runs are never made again."""
    from saocli.cli.output import err
    from saocli.errors import SaoError

    try:
        yield
    except (KeyboardInterrupt, SaoError):
        err.print(f"go on with it: sao compare --resume {directory.path}", soft_wrap=True)
        raise


def _request(tokens: list[str], arms: list[str], sweep: str | None, conf_dir: str | None) -> Request:
    from saocli.cli.tokens import reveals_secret, split
    from saocli.compare.plan import Request
    from saocli.errors import ConfigError

    found = split(tokens)
    named = (*arms, *found.words)
    if not named:
        raise ConfigError("no arm was named", fix="give at least one: sao compare --arms sao grpo_dis")
    if any(reveals_secret(override) for override in found.overrides):
        raise ConfigError("the comparison's report shows its command, with gateway.token in it", fix="give SAO_TOKEN=…")
    return Request(
        conf=found.conf or DEFAULT_CONF,
        arms=named,
        overrides=tuple(_long(override, SHORT) for override in found.overrides),
        sweep=tuple(_swept(sweep)) if sweep else (),
        conf_dir=conf_dir,
        command=f"sao {shlex.join(sys.argv[1:])}",
    )


def _long(override: str, names: dict[str, str]) -> str:
    key, _, value = override.partition("=")
    return f"{names.get(key, key)}={value}" if "=" in override else override


def _swept(text: str) -> list[str]:
    """`lr=1e-3,2e-3` as one override per value. Raises ConfigError."""
    from saocli.errors import ConfigError

    key, _, values = _long(text, SWEPT).partition("=")
    listed = [value.strip() for value in values.split(",") if value.strip()]
    if len(listed) < 2:
        raise ConfigError(f"--sweep {text} gives nothing to choose from", fix="name two values or more: lr=1e-3,2e-3")
    return [f"{key}={value}" for value in listed]


def _play(plan: Plan, directory: RunDirectory, *, as_json: bool) -> Comparison:
    from saocli.cli.output import err, out
    from saocli.cli.progress import CompareProgress
    from saocli.compare.play import play
    from saocli.environment import environment
    from saocli.gateway.server import bind
    from saocli.wire import run as run_stack

    console = err if as_json else out
    directory.write_environment(environment())
    progress = CompareProgress(console, plan)

    async def execute(run: PlannedRun, where: RunDirectory) -> None:
        loaded = run.loaded
        where.write_config(loaded.yaml, loaded.overrides)
        where.write_environment(environment())
        with where.lock(), bind(loaded.config.gateway.host, loaded.config.gateway.port) as listener:
            await run_stack(
                loaded.config,
                where,
                progress.view(),
                listener=listener,
                drive=True,
                last_step=loaded.config.steps,
                stop=asyncio.Event(),
            )

    with progress.running():
        return asyncio.run(play(plan, directory.path, execute, progress))


def _show(comparison: Comparison, directory: RunDirectory, command: str, *, as_json: bool) -> None:
    import json

    from saocli.cli.output import out, print_json
    from saocli.compare.report import write_report
    from saocli.compare.table import print_comparison
    from saocli.compare.verdict import differences

    found = differences(comparison)
    paths = write_report(comparison, found, directory.path, command)
    if as_json:
        print_json(json.loads((directory.path / "report.json").read_text()))
    else:
        print_comparison(comparison, found, out, paths)
