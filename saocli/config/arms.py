"""Which arms there are and what the rest of a run must know of each, without the torch that their code needs."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points
from types import MappingProxyType
from typing import Any, NamedTuple

from saocli.errors import ConfigError

GROUP = "sao.arms"  # entry points by which an installed package adds an arm: name = "module:Class"
# What such a class must have: the members of arms.base.Arm.
MEMBERS = (
    "name",
    "advantage_name",
    "uses_critic",
    "grouped",
    "trains",
    "history",
    "from_config",
    "advantages",
    "policy_loss",
)


class ArmFacts(NamedTuple):
    """What an arm asks of queue, driver and service."""

    grouped: bool  # `arm.group_size` rollouts of one prompt must share a batch
    trains: bool  # False: serves and records only
    history: bool  # samples must carry the scores of earlier rollouts
    critic: bool  # a critic learns beside the actor


# A test keeps them equal to what the classes in arms.registry say of themselves.
SHIPPED: Mapping[str, ArmFacts] = MappingProxyType(
    {
        "sao": ArmFacts(grouped=False, trains=True, history=False, critic=True),
        "grpo_dis": ArmFacts(grouped=True, trains=True, history=False, critic=False),
        "grpo": ArmFacts(grouped=True, trains=True, history=False, critic=False),
        "running_mean": ArmFacts(grouped=False, trains=True, history=True, critic=False),
        "base": ArmFacts(grouped=False, trains=False, history=False, critic=False),
    }
)


def facts(name: str) -> ArmFacts | None:
    """Of a shipped or installed arm; None when there is none of that name. Raises ConfigError as `user_arm` does."""
    if name in SHIPPED:
        return SHIPPED[name]
    arm = user_arm(name)
    return ArmFacts(arm.grouped, arm.trains, arm.history, arm.uses_critic) if arm is not None else None


def arm_names() -> tuple[str, ...]:
    """The shipped arms, then the installed ones."""
    return (*SHIPPED, *sorted({entry.name for entry in entry_points(group=GROUP)} - SHIPPED.keys()))


def user_arm(name: str) -> Any:
    """The class that an installed package offers under `name`; None without one. A shipped name is never replaced.

    Raises ConfigError, naming the package, for a class that cannot be imported or lacks a member of an arm.
    """
    for entry in entry_points(group=GROUP, name=name):
        if name not in SHIPPED:
            return _load(entry)
    return None


def _load(entry: EntryPoint) -> Any:
    where = f"arm '{entry.name}' ({entry.value}{f' of {entry.dist.name}' if entry.dist else ''})"
    try:
        arm = entry.load()
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"{where} cannot be imported: {error}", fix="repair or uninstall that package") from error
    if missing := [member for member in MEMBERS if not hasattr(arm, member)]:
        raise ConfigError(f"{where} has no {', '.join(missing)}", fix="an arm has every member of saocli.arms.base.Arm")
    if arm.name != entry.name:
        raise ConfigError(f"{where} calls itself '{arm.name}'", fix="give class and entry point the same name")
    return arm
