"""The house's rows: a package imports only what lies below it, and the command line starts light."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import saocli

ROOT = Path(saocli.__file__).parent
ROWS = (
    ("types", "errors", "process", "environment", "digest", "broadcast", "stored"),
    ("algo", "config"),
    ("arms",),
    ("engine", "trainer", "tasks", "processors", "metrics", "store", "models", "client"),
    ("loop", "colocate", "gateway", "driver", "queue", "supervise"),
    ("wire", "compare", "doctor"),
    ("cli",),
)
# Row 0 has one arrow inside: whoever starts a process can say that it died.
WITHIN = {("process", "errors")}
ROW = {part: row for row, parts in enumerate(ROWS) for part in parts}
HEAVY = ("torch", "hydra", "transformers", "megatron")


def imported(tree: ast.AST, package: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Dotted names that a module imports anywhere, TYPE_CHECKING and function bodies included; relative ones too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (tuple(alias.name.split(".")) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = base + tuple((node.module or "").split(".")) if node.module else base
            yield from ((*module, alias.name) for alias in node.names)


def imports_of(path: Path) -> set[tuple[str, ...]]:
    package = ("saocli", *path.relative_to(ROOT).parent.parts)
    return set(imported(ast.parse(path.read_text(encoding="utf-8")), package))


def part_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def violation(part: str, name: tuple[str, ...]) -> str | None:
    if name[0] != "saocli" or len(name) < 2 or name[1] == part or name[1].startswith("__"):
        return None
    if name[1] not in ROW:
        return f"saocli.{name[1]} has no row"
    allowed = ROW[name[1]] < ROW[part] or (part, name[1]) in WITHIN
    return None if allowed else f"row {ROW[part]} imports {'.'.join(name)} of row {ROW[name[1]]}"


SOURCES = sorted(path for path in ROOT.rglob("*.py") if path != ROOT / "__init__.py")


def test_every_part_has_a_row() -> None:
    assert {part_of(path) for path in SOURCES} <= set(ROW)


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_go_down(path: Path) -> None:
    broken = {found for name in imports_of(path) if (found := violation(part_of(path), name))}
    assert not broken


def test_the_rule_catches_neighbours_upward_and_relative_imports() -> None:
    source = (
        "from saocli.store import records\nimport saocli.loop\nfrom ..trainer import base\nfrom saocli import types"
    )
    names = set(imported(ast.parse(source), ("saocli", "metrics")))
    broken = {name for name in names if violation("metrics", name)}
    assert broken == {("saocli", "store", "records"), ("saocli", "loop"), ("saocli", "trainer", "base")}


def test_math_needs_torch_alone_and_config_needs_no_torch() -> None:
    for part, forbidden in {"algo": {"numpy", "megatron", "transformers"}, "config": {"torch", "megatron"}}.items():
        for path in (ROOT / part).rglob("*.py"):
            assert not {name[0] for name in imports_of(path)} & forbidden, path
    users = {path.name for path in (ROOT / "config").rglob("*.py") if any(n[0] == "hydra" for n in imports_of(path))}
    assert users <= {"load.py"}


@pytest.mark.parametrize("module", ["saocli.cli.app", "saocli.metrics.record", "saocli.metrics.table"])
def test_light_modules_load_nothing_heavy(module: str) -> None:
    code = f"import sys, {module}; print([name for name in {HEAVY!r} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == "[]"
