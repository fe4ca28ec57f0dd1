"""Arms by name: one file and one line each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from saocli.arms.base import Arm
from saocli.arms.sao import Sao
from saocli.config.arm import ArmConfig
from saocli.errors import ConfigError

REGISTRY: Mapping[str, Callable[[ArmConfig], Arm]] = MappingProxyType({Sao.name: Sao.from_config})


def build_arm(config: ArmConfig) -> Arm:
    """The arm that `config.name` names. Raises ConfigError, listing the arms there are."""
    factory = REGISTRY.get(config.name)
    if factory is None:
        raise ConfigError(f"no arm named {config.name!r}", fix=f"set arm.name to one of: {', '.join(sorted(REGISTRY))}")
    return factory(config)
