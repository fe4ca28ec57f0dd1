"""Which profile of a run this machine takes."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from saocli.config.machine import MachineConfig, MachineKind
from saocli.errors import ConfigError, MachineError


@dataclass(frozen=True)
class Profile:
    """The chosen profile, and one line that says why."""

    name: str
    note: str


def choose(machine: MachineConfig, offered: Collection[str], detect: Callable[[], int]) -> Profile:
    """Decide between the profiles a conf offers (none offered: it runs on the CPU only).

    `detect` counts the GPUs and is asked only when that matters. Raises MachineError when the machine has too few of
    them for what was asked, and ConfigError when the conf does not offer what was asked.
    """
    offered = offered or ["cpu"]
    if machine.kind is MachineKind.AUTO and "gpu" not in offered:
        return Profile("cpu", "profile cpu (the only one of this conf)")
    if machine.kind is MachineKind.CPU:
        _must_offer("cpu", offered)
        return Profile("cpu", "profile cpu (asked for)")
    found = detect()
    there = "no GPU found" if found == 0 else f"{found} GPU{'s' if found > 1 else ''} found"
    if found >= machine.gpus:
        _must_offer("gpu", offered)
        return Profile("gpu", f"profile gpu ({there})")
    if machine.kind is MachineKind.AUTO and "cpu" in offered:
        return Profile(
            "cpu", f"profile cpu ({there if found == 0 else f'{there}, machine.gpus asks for {machine.gpus}'})"
        )
    instead = "machine=cpu runs on the CPU; " if "cpu" in offered else ""
    raise MachineError(
        f"the gpu profile needs machine.gpus={machine.gpus}, {there}: {machine.gpus - found} missing",
        fix=f"{instead}nvidia-smi and CUDA_VISIBLE_DEVICES say which GPUs can be used",
    )


def _must_offer(kind: str, offered: Collection[str]) -> None:
    if kind not in offered:
        raise ConfigError(
            f"machine.kind is {kind}, but this conf has no {kind} profile",
            fix=f"it offers: {', '.join(sorted(offered))}",
        )
