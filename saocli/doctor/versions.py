"""The versions that sao was tested with: their one home. What it accepts, its own metadata says (pyproject.toml)."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, metadata, requires
from types import MappingProxyType

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from saocli import __version__
from saocli.doctor.finding import Finding, Mark

TESTED: Mapping[str, str] = MappingProxyType(
    {
        "saocli": __version__,
        "torch": "2.13.0",
        "megatron-core": "0.16.1",
        "mbridge": "0.15.1",
        "transformers": "5.24.0",
        "hydra-core": "1.3.8",
        "fastapi": "0.165.0",
        "reasoning-gym": "0.1.25",
    }
)
# SGLang pins a stack of its own, in its own interpreter: no requirement of sao can name it.
ACCEPTED_SGLANG = SpecifierSet(">=0.5.23,<0.6")
TESTED_SGLANG: Mapping[str, str] = MappingProxyType(
    {"sglang": "0.5.23", "torch": "2.14.1", "transformers": "5.19.0"},
)

SGLANG_ENVIRONMENT = (
    "give SGLang an environment of its own and set engine.python to its interpreter: "
    "on GPUs `pip install sglang=={sglang}` makes one, on a CPU tests/sglang/build_env.sh"
).format_map(TESTED_SGLANG)

KNOWN = tuple(sorted({*TESTED, *TESTED_SGLANG}))
SERVICE = ("hydra-core", "fastapi", "transformers")
TRAINER = ("torch", "megatron-core", "mbridge", "transformers")
EMBEDDED = ("torch", "transformers")


def accepted() -> dict[str, SpecifierSet]:
    """Package → the versions that sao declares to work with; empty when sao is not installed."""
    try:
        declared = [Requirement(text) for text in requires("saocli") or []]
    except PackageNotFoundError:
        return {}
    return {one.name: one.specifier for one in declared} | {"sglang": ACCEPTED_SGLANG}


def accepted_python() -> SpecifierSet:
    """The Pythons that sao runs on."""
    try:
        return SpecifierSet(metadata("saocli")["Requires-Python"] or "")
    except PackageNotFoundError:
        return SpecifierSet()


def bounds(limits: SpecifierSet) -> str:
    """The lower bound first."""
    return " ".join(sorted((str(one) for one in limits), reverse=True))


def judge(
    package: str,
    installed: str | None,
    tested: str,
    limits: SpecifierSet | None,
    *,
    label: str,
    where: str,
    cuda: bool = False,
) -> Finding:
    """One installed package: a miss when absent, out of bounds or, with `cuda`, a CPU build; a note when untested.

    `where`: the interpreter, for the fix.
    """
    needed = f"{tested} tested" + (f", {bounds(limits)}" if limits and str(limits) != f"=={tested}" else "")
    install = f"{where} -m pip install '{package}=={tested}'" if package != "sglang" else SGLANG_ENVIRONMENT
    if installed is None:
        return Finding(Mark.MISSING, label, "not installed", needed, install)
    version = Version(installed)
    if limits is not None and not limits.contains(version.public, prereleases=True):
        return Finding(Mark.MISSING, label, installed, needed, install)
    if cuda and version.local is not None and version.local.startswith("cpu"):
        return Finding(
            Mark.MISSING, label, f"{installed}, a build for the CPU", needed, f"install its CUDA build: {install}"
        )
    same = version.public == tested
    return Finding(Mark.OK if same else Mark.NOTE, label, installed if same else f"{installed}, untested", needed)
