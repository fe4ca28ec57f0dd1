"""Arms by name: one file and one line each. An installed package adds its own through the entry points `sao.arms`."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from saocli.arms.base import Arm
from saocli.arms.grpo import Grpo
from saocli.arms.grpo_dis import GrpoDis
from saocli.arms.running_mean import RunningMean
from saocli.arms.sao import Sao
from saocli.arms.untrained import Untrained
from saocli.config.arm import ArmConfig
from saocli.config.arms import arm_names, user_arm
from saocli.errors import ConfigError

REGISTRY: Mapping[str, type[Arm]] = MappingProxyType(
    {
        Sao.name: Sao,
        GrpoDis.name: GrpoDis,
        Grpo.name: Grpo,
        RunningMean.name: RunningMean,
        Untrained.name: Untrained,
    }
)


def build_arm(config: ArmConfig) -> Arm:
    """The arm that `config.name` names. Raises ConfigError, listing the arms there are."""
    arm: type[Arm] | None = REGISTRY.get(config.name) or user_arm(config.name)
    if arm is None:
        raise ConfigError(f"no arm named {config.name!r}", fix=f"set arm.name to one of: {', '.join(arm_names())}")
    return arm.from_config(config)
