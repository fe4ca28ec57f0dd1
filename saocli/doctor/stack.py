"""The interpreters of a run and the packages they need: each is asked, once, by starting it."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

from packaging.specifiers import SpecifierSet

from saocli.config.engine import EngineKind
from saocli.config.placement import launched
from saocli.config.run import RunConfig
from saocli.config.trainer import Device
from saocli.doctor.finding import Finding, Mark, guarded, verdict
from saocli.doctor.interpreters import Interpreters
from saocli.doctor.versions import (
    EMBEDDED,
    SERVICE,
    SGLANG_ENVIRONMENT,
    TESTED,
    TESTED_SGLANG,
    TRAINER,
    accepted,
    accepted_python,
    bounds,
    judge,
)
from saocli.doctor.words import place
from saocli.errors import MachineError
from saocli.process import interpreter


@dataclass(slots=True)
class _Role:
    """An interpreter's part in a run."""

    label: str
    packages: dict[str, str]  # package → tested version
    cuda: bool = False  # its torch must be a CUDA build


def stack_findings(config: RunConfig | None, interpreters: Interpreters) -> Iterator[Finding]:
    """Every interpreter that takes part, and the packages it needs; without a conf ours and the trainer's default."""
    for path, role in _roles(config).items():
        yield from guarded(role.label, partial(_interpreter, interpreters, path, role))


def _roles(config: RunConfig | None) -> dict[str, _Role]:
    roles = {sys.executable: _Role("python", _tested(SERVICE))}

    def take_part(path: str, key: str, packages: Mapping[str, str], *, ours: bool, gpu: bool) -> None:
        """`ours`: it runs code of this package, so another interpreter needs it too."""
        role = roles.setdefault(path, _Role(key, _tested(("saocli",)) if ours else {}))
        role.packages = dict(packages) | role.packages
        role.cuda |= gpu

    if config is None:
        take_part(sys.executable, "python", _tested(TRAINER), ours=True, gpu=False)
        return roles
    trainer, engine = config.trainer, config.engine
    gpu = trainer.device is Device.GPU
    take_part(interpreter(trainer.python), "trainer.python", _tested(TRAINER), ours=True, gpu=gpu)
    sglang = engine.kind is EngineKind.SGLANG
    if launched(engine):
        take_part(
            interpreter(engine.python),
            "engine.python",
            TESTED_SGLANG if sglang else _tested(EMBEDDED),
            ours=not sglang,
            gpu=engine.device is Device.GPU,
        )
    return roles


def _tested(packages: Iterable[str]) -> dict[str, str]:
    return {name: TESTED[name] for name in packages}


def _interpreter(interpreters: Interpreters, path: str, role: _Role) -> Iterator[Finding]:
    try:
        found = interpreters.ask(path)
    except MachineError as error:
        fix = SGLANG_ENVIRONMENT if "sglang" in role.packages else error.fix
        yield Finding(Mark.MISSING, role.label, error.message, "a Python that starts", fix)
        return
    limits = accepted()
    # SGLang's own stack is bounded by what it pins itself, not by what sao declares; nor is its Python.
    foreign = role.packages.get("torch") == TESTED_SGLANG["torch"]
    pythons = SpecifierSet() if foreign else accepted_python()
    yield verdict(
        role.label,
        pythons.contains(found.python, prereleases=True),
        found=f"{found.python} · {place(path)}",
        needed=bounds(pythons),
        fix="make an environment with another Python, and install sao there",
    )
    prefix = "" if path == sys.executable else role.label.removesuffix("python")
    for name, tested in role.packages.items():
        yield judge(
            name,
            found.packages[name],
            tested,
            None if foreign and name != "sglang" else limits.get(name),
            label=prefix + name,
            where=place(path),
            cuda=role.cuda and name == "torch",
        )
