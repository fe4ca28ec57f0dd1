"""conf/ travels with the program: the wheel holds every file of it, and every package."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_the_package_list_is_the_tree() -> None:
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    found = {".".join(file.parent.relative_to(ROOT).parts) for file in (ROOT / "saocli").rglob("*.py")}
    assert set(listed) == found | {"saocli._conf"}
    assert len(listed) == len(set(listed))


def test_a_wheel_finds_its_confs(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for name in ("saocli", "conf"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", source)
    (source / "README.md").touch()
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-w", tmp_path, source]
    subprocess.run(command, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "installed")
    packed = tmp_path / "installed" / "saocli" / "_conf"
    assert {file.relative_to(packed) for file in packed.rglob("*.yaml")} == {
        file.relative_to(ROOT / "conf") for file in (ROOT / "conf").rglob("*.yaml")
    }
    script = "from saocli.config.load import load_run; print(load_run('cpu_smoke', [], detect=lambda: 0).config.name)"
    ran = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path / "installed", check=True, capture_output=True, text=True
    )
    assert ran.stdout == "cpu_smoke\n"
