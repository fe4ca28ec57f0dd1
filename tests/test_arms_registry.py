"""Every arm is found by its name, says the same of itself everywhere, and a package can bring its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from saocli.arms.registry import REGISTRY, build_arm
from saocli.config.arm import ArmConfig
from saocli.config.arms import MEMBERS, SHIPPED, ArmFacts, arm_names, facts
from saocli.config.load import load_run
from saocli.errors import ConfigError

MINE = """
from dataclasses import dataclass
from typing import ClassVar

from saocli.arms.groups import GroupArm
from saocli.arms.grpo_dis import GrpoDis


@dataclass(frozen=True, kw_only=True, slots=True)
class Pairs(GrpoDis):
    name: ClassVar[str] = "pairs"
    advantage_name: ClassVar[str] = "pairwise"
    history: ClassVar[bool] = True


class Nameless:
    name = "nameless"


class Other(Pairs):
    name = "another"
"""
ENTRY_POINTS = """
[sao.arms]
pairs = ourarms:Pairs
nameless = ourarms:Nameless
misnamed = ourarms:Other
absent = ourarms:Absent
gone = nosuchmodule:Arm
sao = ourarms:Pairs
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installed package with arms of its own."""
    (tmp_path / "ourarms.py").write_text(MINE)
    info = tmp_path / "our_arms-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: our-arms\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "ourarms", raising=False)
    return tmp_path


def config(name: str) -> ArmConfig:
    return ArmConfig(name=name, eps_low=0.3, eps_high=5.0, group_size=2)


def test_shipped_facts_are_what_the_classes_say() -> None:
    said = {name: ArmFacts(arm.grouped, arm.trains, arm.history, arm.uses_critic) for name, arm in REGISTRY.items()}
    assert said == dict(SHIPPED)


def test_every_arm_is_registered_under_its_own_name_and_has_every_member() -> None:
    for name, cls in REGISTRY.items():
        assert build_arm(config(name)).name == name == cls.name
        assert [member for member in MEMBERS if not hasattr(cls, member)] == []
        assert cls.advantage_name


def test_no_control_arm_has_a_critic() -> None:
    assert [name for name, arm in REGISTRY.items() if arm.uses_critic] == ["sao"]


def test_an_unknown_arm_lists_the_arms() -> None:
    assert facts("soa") is None
    for refused in (lambda: build_arm(config("soa")), lambda: load_run("letters", ["arm.name=soa"], detect=lambda: 0)):
        with pytest.raises(ConfigError, match="soa") as error:
            refused()
        assert all(name in str(error.value.fix) for name in SHIPPED)


def test_an_installed_arm_is_found(package: Path) -> None:
    assert facts("pairs") == ArmFacts(grouped=True, trains=True, history=True, critic=False)
    assert arm_names() == (*SHIPPED, "absent", "gone", "misnamed", "nameless", "pairs")
    arm = build_arm(config("pairs"))
    assert (arm.name, arm.advantage_name) == ("pairs", "pairwise")
    overrides = ["arm.name=pairs", "arm.group_size=2", "batch_size=2", "trainer.global_batch_size=2"]
    assert load_run("letters", [*overrides, "tasks.attempts=2"], detect=lambda: 0).config.arm.name == "pairs"
    with pytest.raises(ConfigError, match="a group of 2 can never form"):
        load_run("letters", overrides, detect=lambda: 0)


def test_an_installed_arm_never_replaces_a_shipped_one(package: Path) -> None:
    assert facts("sao") == SHIPPED["sao"]
    assert type(build_arm(config("sao"))) is REGISTRY["sao"]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nameless", "has no advantage_name, uses_critic, grouped, trains, history, from_config"),
        ("misnamed", "calls itself 'another'"),
        ("absent", "cannot be imported"),
        ("gone", "cannot be imported"),
    ],
)
def test_a_broken_arm_is_refused_with_its_package(package: Path, name: str, said: str) -> None:
    with pytest.raises(ConfigError) as error:
        facts(name)
    assert said in error.value.message
    assert f"arm '{name}'" in error.value.message
    assert "of our-arms" in error.value.message


def test_facts_need_no_torch() -> None:
    code = "import sys; from saocli.config.arms import facts; print(facts('grpo'), 'torch' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip().endswith("False")
