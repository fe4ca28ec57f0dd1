"""`sao doctor`: this machine against a conf, or a run directory against damage; a fix for each miss."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from saocli.cli.output import Json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from saocli.config.estimate import Estimate
    from saocli.doctor.finding import Finding

MISSING_EXIT = 5


def doctor(
    tokens: Annotated[
        list[str] | None, typer.Argument(metavar="[conf=NAME] [key=value]…", help="A conf to check this machine for.")
    ] = None,
    run: Annotated[str | None, typer.Option(help="A run directory or its name: check that it is whole.")] = None,
    conf_dir: Annotated[str | None, typer.Option(help="A folder of confs in front of the shipped one.")] = None,
    as_json: Json = False,
) -> None:
    """Check this machine for a conf, or a run for damage: a line per check, a fix per miss, exit 5 if there is one."""
    from saocli.cli.service import newest_run
    from saocli.cli.tokens import split_without_words
    from saocli.errors import ConfigError

    named = split_without_words(tokens or [])
    if named.conf is None and named.overrides:
        raise ConfigError(f"{named.overrides[0]} changes no conf", fix="name one: sao doctor conf=NAME key=value")
    directory = newest_run(run) if run is not None else None
    findings: list[Finding] = []
    title: dict[str, Any] = {}
    plan: Estimate | None = None
    confs: list[Finding] = []
    if named.conf is not None:
        findings, plan, title = _conf(named.conf, named.overrides, conf_dir)
    elif directory is None:
        findings, confs = _machine(conf_dir)
    if directory is not None:
        from saocli.doctor.run import examine_run
        from saocli.doctor.words import place

        findings += examine_run(directory)
        title["run"] = place(directory.path)
    _show(findings, confs, plan, title, as_json=as_json)


def _conf(
    name: str, overrides: Sequence[str], conf_dir: str | None
) -> tuple[list[Finding], Estimate | None, dict[str, Any]]:
    from saocli.cli.service import RUNS
    from saocli.cli.tokens import conf_folder
    from saocli.doctor.diagnosis import examine_conf
    from saocli.doctor.interpreters import Interpreters
    from saocli.doctor.machine import look
    from saocli.doctor.versions import KNOWN

    folder = conf_folder(conf_dir)
    diagnosis = examine_conf(name, overrides, look(), Interpreters(KNOWN), RUNS, conf_dir=folder)
    return list(diagnosis.findings), diagnosis.plan, {"conf": name, "profile": diagnosis.loaded.profile}


def _machine(conf_dir: str | None) -> tuple[list[Finding], list[Finding]]:
    from saocli.cli.service import RUNS
    from saocli.cli.tokens import conf_folder
    from saocli.doctor.diagnosis import examine_every_conf, examine_machine
    from saocli.doctor.interpreters import Interpreters
    from saocli.doctor.machine import look
    from saocli.doctor.versions import KNOWN

    machine, interpreters, folder = look(), Interpreters(KNOWN), conf_folder(conf_dir)
    confs = examine_every_conf(machine, interpreters, RUNS, conf_dir=folder)
    return examine_machine(machine, interpreters, RUNS), list(confs)


def _show(
    findings: Sequence[Finding],
    confs: Sequence[Finding],
    plan: Estimate | None,
    title: dict[str, Any],
    *,
    as_json: bool,
) -> None:
    from saocli import __version__
    from saocli.cli.output import out, print_json
    from saocli.doctor.diagnosis import missing
    from saocli.doctor.table import print_estimate, print_findings

    misses = missing([*findings, *confs])
    if as_json:
        document = {"ok": not misses, **title, "checks": [asdict(one) for one in findings]}
        print_json(document | ({"confs": [asdict(one) for one in confs]} if confs else {}) | _plan_fields(plan))
    else:
        about = "".join(f" · {title[key]}" for key in ("conf", "run") if key in title)
        out.print(f"[bold]sao {__version__} doctor[/bold]{about}\n", soft_wrap=True)
        print_findings(out, findings)
        if confs:
            out.print("\n  [bold]confs that could run here[/bold]")
            print_findings(out, confs)
        if plan is not None:
            print_estimate(out, plan)
        listed = ", ".join(one.what for one in misses)
        out.print(
            f"\n[bold red]{len(misses)} missing[/bold red]: {listed}" if misses else "\n[green]all is well[/green]"
        )
    if misses:
        raise typer.Exit(MISSING_EXIT)


def _plan_fields(plan: Estimate | None) -> dict[str, Any]:
    if plan is None:
        return {}
    totals = {"ram_bytes": plan.ram_bytes, "disk_bytes": plan.disk_bytes}
    return {"estimate": asdict(plan) | totals}
