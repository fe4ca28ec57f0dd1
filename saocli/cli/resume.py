"""`--resume`: a run as its own directory describes it, under overrides that leave its training as it is."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from saocli.cli.tokens import split_without_words
from saocli.errors import ConfigError

if TYPE_CHECKING:
    from saocli.config.load import Loaded
    from saocli.store.run import RunDirectory

# What may differ from how the run was started: none of it changes what a step computes.
FREE_GROUPS = ("gateway.", "metrics.", "releases.")
FREE_KEYS = (
    "engine.python",
    "engine.slots",
    "engine.restarts",
    "engine.start_timeout_s",
    "trainer.restarts",
    "trainer.start_timeout_s",
)


def load_resumed(run: str, tokens: Sequence[str], *, conf_dir: str | None) -> tuple[Loaded, RunDirectory]:
    """The run in directory `run` (a path, or a name under runs/). Raises ConfigError for what would change it."""
    from saocli.cli.service import newest_run
    from saocli.config.load import load_run

    found = split_without_words(tokens)
    if found.conf is not None or conf_dir is not None:
        given = f"conf={found.conf}" if found.conf is not None else f"--conf-dir {conf_dir}"
        raise ConfigError(f"{given} was given with --resume", fix="a run goes on with the conf in its own directory")
    for override in found.overrides:
        key = override.lstrip("+~").partition("=")[0]
        if not key.startswith(FREE_GROUPS) and key not in FREE_KEYS:
            free = " ".join((*(f"{group}*" for group in FREE_GROUPS), *FREE_KEYS))
            raise ConfigError(
                f"{key} cannot be changed with --resume: the run would not be the same run any more",
                fix=f"these can be: {free}; for anything else start a new run",
            )
    directory = newest_run(run)
    overrides = list(found.overrides)
    if directory.token_file.exists() and not os.environ.get("SAO_TOKEN"):
        overrides.insert(0, f"gateway.token={_quoted(directory.token())}")
    return load_run("config", overrides, conf_dir=directory.path), directory


def _quoted(text: str) -> str:
    """As one value of Hydra's grammar, whatever it holds."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'").replace("${", "\\${")
    return f"'{escaped}'"
