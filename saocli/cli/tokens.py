"""The tokens after a command: `conf=NAME`, Hydra overrides, and bare words."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from saocli.errors import ConfigError

if TYPE_CHECKING:
    from saocli.config.load import Loaded
    from saocli.config.run import RunConfig
    from saocli.store.run import RunDirectory


@dataclass(frozen=True)
class Tokens:
    """One command line's tokens, told apart."""

    conf: str | None
    overrides: tuple[str, ...]  # key=value, +key=value, ++key=value, ~key
    words: tuple[str, ...]  # everything else, e.g. arms


def split(tokens: Sequence[str]) -> Tokens:
    """Tell tokens apart. Raises ConfigError when conf= is empty or comes twice."""
    confs, overrides, words = [], [], []
    for token in tokens:
        if token.startswith("conf="):
            confs.append(token.removeprefix("conf="))
        elif "=" in token or token.startswith("~"):
            overrides.append(token)
        else:
            words.append(token)
    if len(confs) > 1:
        raise ConfigError(f"conf= was given {len(confs)} times: {', '.join(confs)}", fix="a run has one conf")
    if confs == [""]:
        raise ConfigError("conf= names no conf", fix="sao conf lists them")
    return Tokens(confs[0] if confs else None, tuple(overrides), tuple(words))


def split_without_words(tokens: Sequence[str]) -> Tokens:
    """The same for commands that take no bare word: one is refused, never dropped."""
    found = split(tokens)
    if found.words:
        word = found.words[0]
        raise ConfigError(f"unexpected word '{word}'", fix=f"conf={word} names a conf, key=value sets a value")
    return found


def reveals_secret(argument: str) -> bool:
    """Whether this override sets a secret in so many words; `key=${oc.env:NAME}` does not.

    Raises ConfigError for one that sets it together with other values.
    """
    from saocli.config.plain import SECRETS

    key, _, value = argument.lstrip("+").partition("=")
    if "${" in value:
        return False
    sections = {secret.partition(".")[0]: secret for secret in SECRETS}
    if key in sections and sections[key].rpartition(".")[2] in value:
        raise ConfigError(f"{key}={{…}} sets {sections[key]} among others", fix=f"give {sections[key]}=… by itself")
    return key in SECRETS


def conf_folder(conf_dir: str | Path | None) -> Path | None:
    """The user's conf folder: --conf-dir, else SAO_CONF_DIR."""
    folder = conf_dir or os.environ.get("SAO_CONF_DIR")
    return Path(folder) if folder else None


def load_run_tokens(tokens: Sequence[str], *, conf_dir: str | Path | None = None) -> Loaded:
    """The run that `conf=NAME` and the overrides name. Raises ConfigError and MachineError."""
    from saocli.config.load import load_run, names

    found, folder = split_without_words(tokens), conf_folder(conf_dir)
    if found.conf is None:
        listed = " · ".join(conf.name for conf in names(folder))
        raise ConfigError("no conf was named: give conf=NAME", fix=f"{listed}   (sao conf lists them)")
    return load_run(found.conf, found.overrides, conf_dir=folder)


def load_config(
    tokens: Sequence[str], *, conf_dir: str | Path | None = None, run: RunDirectory | None = None
) -> RunConfig:
    """The named conf, or without a name the conf that `run` was started with, under the given overrides."""
    found = split_without_words(tokens)
    if found.conf is None and run is not None:
        from saocli.config.load import load_run

        return load_run("config", found.overrides, conf_dir=run.path).config
    return load_run_tokens(tokens, conf_dir=conf_dir).config
