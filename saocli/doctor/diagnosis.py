"""All checks of a machine, of a conf on it, and of every conf there is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from saocli.config.estimate import Estimate, estimate
from saocli.config.gateway import GatewayConfig
from saocli.config.shape import Shape
from saocli.doctor import checks
from saocli.doctor.finding import Finding, Mark, guarded
from saocli.doctor.interpreters import Interpreters
from saocli.doctor.machine import Machine
from saocli.doctor.model import config_json, model_finding
from saocli.doctor.stack import stack_findings
from saocli.doctor.words import size
from saocli.errors import MachineError, SaoError

if TYPE_CHECKING:
    from saocli.config.load import Loaded

ANY_NUMBER_OF_GPUS = 2**10


@dataclass(frozen=True, kw_only=True, slots=True)
class Diagnosis:
    """A conf on this machine."""

    loaded: Loaded
    findings: tuple[Finding, ...]
    plan: Estimate | None  # None while the model's sizes are unknown

    @property
    def misses(self) -> tuple[Finding, ...]:
        return missing(self.findings)


def missing(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Those that are in the way."""
    return tuple(one for one in findings if one.mark is Mark.MISSING)


def examine_machine(machine: Machine, interpreters: Interpreters, runs: Path) -> list[Finding]:
    """What holds for every conf. Nothing raises: a check that fails is a miss."""
    return [
        *guarded("python", lambda: stack_findings(None, interpreters)),
        checks.gpu_finding(machine, None, None),
        checks.memory_finding(machine, None),
        *guarded("disk", lambda: [checks.disk_finding(runs, None)]),
        checks.shm_finding(machine, None),
        checks.files_finding(machine, None),
        *guarded("port", lambda: [checks.port_finding(GatewayConfig())]),
        *guarded("run directory", lambda: [checks.runs_finding(runs)]),
    ]


def examine_conf(
    name: str,
    overrides: Sequence[str],
    machine: Machine,
    interpreters: Interpreters,
    runs: Path,
    *,
    conf_dir: Path | None,
    probe: bool = True,
) -> Diagnosis:
    """Every check of one conf. `probe`: ask the hub about a model that is not here. Raises ConfigError alone."""
    loaded = _compose(name, overrides, machine, conf_dir)
    config, plan = loaded.config, None
    found = [Finding(Mark.OK, "conf", f"composes · {loaded.profile_note}")]
    found += guarded("python", lambda: stack_findings(config, interpreters))
    model = None
    try:
        if model := config_json(config.model):
            plan = estimate(config, Shape.from_config(model))
    except SaoError as error:
        found.append(Finding(Mark.MISSING, "model", error.message, fix=error.fix))
    else:
        found += guarded("model", lambda: [model_finding(config.model, model, probe=probe)])
    if model is not None:
        found.append(checks.context_finding(config, model))
    found += [
        *guarded("tasks", lambda: [checks.tasks_finding(config, interpreters)]),
        checks.gpu_finding(machine, config, plan),
        checks.memory_finding(machine, plan),
        *guarded("disk", lambda: [checks.disk_finding(runs, plan)]),
        checks.shm_finding(machine, config),
        checks.files_finding(machine, config),
        *guarded("port", lambda: [checks.port_finding(config.gateway)]),
        *guarded("run directory", lambda: [checks.runs_finding(runs)]),
    ]
    return Diagnosis(loaded=loaded, findings=tuple(found), plan=plan)


def examine_every_conf(
    machine: Machine, interpreters: Interpreters, runs: Path, *, conf_dir: Path | None
) -> Iterator[Finding]:
    """A line per conf: what it takes if it could run here, else the first thing in its way."""
    from saocli.config.load import names

    for conf in names(conf_dir):
        yield from guarded(conf.name, partial(_line, conf.name, machine, interpreters, runs, conf_dir))


def _line(
    name: str, machine: Machine, interpreters: Interpreters, runs: Path, conf_dir: Path | None
) -> Iterator[Finding]:
    diagnosis = examine_conf(name, (), machine, interpreters, runs, conf_dir=conf_dir, probe=False)
    # Another run's port is in the way of none: it is one override away.
    misses = [one for one in diagnosis.misses if one.what != "port"]
    if misses:
        first, more = misses[0], f" (and {len(misses) - 1} more)" * (len(misses) > 1)
        what = f"{first.what}: {first.found}{f', needs {first.needed}' * bool(first.needed)}{more}"
        yield Finding(Mark.NOTE, name, what, fix=f"sao doctor conf={name}")
        return
    plan = diagnosis.plan
    takes = f"{size(plan.ram_bytes)} memory, {size(plan.disk_bytes)} disk" if plan else "sizes unknown until it is here"
    yield Finding(Mark.OK, name, f"{takes} · {diagnosis.loaded.config.model.name} · {diagnosis.loaded.profile}")


def _compose(name: str, overrides: Sequence[str], machine: Machine, conf_dir: Path | None) -> Loaded:
    """The run; where GPUs that it asks for are missing, as if they were there. Raises ConfigError."""
    from saocli.config.load import load_run

    try:
        return load_run(name, overrides, conf_dir=conf_dir, detect=lambda: len(machine.gpus))
    except MachineError:
        loaded = load_run(name, overrides, conf_dir=conf_dir, detect=lambda: ANY_NUMBER_OF_GPUS)
        return replace(loaded, profile_note=f"profile {loaded.profile} (asked for)")
