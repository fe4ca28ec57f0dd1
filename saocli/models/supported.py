"""Refusing, before anything is loaded, a model that could not be trained."""

from __future__ import annotations

import json
from pathlib import Path

from saocli.config.families import refusal
from saocli.errors import ConfigError


def require_supported(folder: Path, *, key: str) -> None:
    """Raise ConfigError unless the model in `folder` works; reads its config.json alone.

    `key`: the conf's key that chose the model, with its value.
    """
    if wrong := refusal(json.loads((folder / "config.json").read_text())):
        raise ConfigError(f"{key}: {wrong.message}", fix=wrong.fix)
