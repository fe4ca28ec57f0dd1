"""A run as plain values: for printing, for JSON, and for the config.yaml of its run directory."""

from __future__ import annotations

import copy
import dataclasses
import re
from collections.abc import Mapping
from enum import Enum
from typing import Any

import yaml

from saocli.config.run import RunConfig

MASK = "***"
SECRETS = frozenset({"gateway.token"})
# OmegaConf's "not given": merging it leaves the value that is there, so a masked file can be run again.
NOT_GIVEN = "???"


def values(config: RunConfig) -> dict[str, Any]:
    """Nested plain values (dict, list, str, number, bool, None), secrets masked."""
    plain: dict[str, Any] = _plain(dataclasses.asdict(config))
    plain["gateway"]["token"] = MASK
    return plain


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value.value if isinstance(value, Enum) else value


def rerunnable_yaml(plain: Mapping[str, Any], profile: str) -> str:
    """The conf that gives this run again with `--conf-dir`, whatever the machine: its profile is applied and pinned.

    The token is not in it; whoever runs it again gives one, or gets the loopback default.
    """
    pinned = copy.deepcopy(dict(plain))
    pinned["gateway"]["token"] = NOT_GIVEN
    pinned["machine"]["kind"] = profile
    pinned["profiles"] = {profile: []}
    text: str = yaml.safe_dump(_literal(pinned), sort_keys=False, allow_unicode=True, width=120)
    return text


def _literal(value: Any) -> Any:
    """Escape what OmegaConf would read as an interpolation."""
    if isinstance(value, dict):
        return {key: _literal(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_literal(item) for item in value]
    if isinstance(value, str):
        return re.sub(r"(\\*)\$\{", lambda found: found.group(1) * 2 + r"\${", value)
    return value
