"""conf/machine/: which profile of a run to take."""

from __future__ import annotations

from dataclasses import dataclass

from saocli.config.choice import Choice


class MachineKind(Choice):
    """auto looks at what is there."""

    AUTO = "auto"
    CPU = "cpu"
    GPU = "gpu"


@dataclass(frozen=True)
class MachineConfig:
    """The asked-for profile and what its gpu form needs."""

    kind: MachineKind = MachineKind.AUTO
    gpus: int = 2  # GPUs that the gpu profile needs
