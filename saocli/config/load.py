"""From a conf's name and overrides to a RunConfig. The only file that knows of Hydra."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.default_element import ResultDefault
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from saocli.config.checks import check
from saocli.config.confs import ConfDir, conf_dirs, find, groups, names, require
from saocli.config.gpus import gpu_count
from saocli.config.keys import keys_of
from saocli.config.machine import MachineConfig
from saocli.config.origins import IN_CODE, Layer, at, flatten, trace
from saocli.config.plain import MASK, SECRETS, rerunnable_yaml, values
from saocli.config.problems import from_composer, unknown_key, unknown_option
from saocli.config.profile import choose
from saocli.config.run import RunConfig
from saocli.errors import ConfigError

__all__ = ["Loaded", "load_run", "names"]

# The composed root: the typed schema first, then the conf. It lets a user's folder stand in front of the shipped one
# wherever the conf itself lies, and spares confs the mention of the schema.
ROOT, SCHEMA = "sao_root", "sao_schema"
KEYS = keys_of(RunConfig)
TOKEN, TOKEN_VARIABLE = "gateway.token", "SAO_TOKEN"


@dataclass(frozen=True)
class Loaded:
    """A run, and how it came to be."""

    config: RunConfig
    profile: str  # cpu | gpu
    profile_note: str  # e.g. "profile cpu (no GPU found)"
    yaml: str  # the resolved run, secrets left out; composes to the same run again
    values: dict[str, Any]  # the same as nested plain values, secrets masked
    overrides: tuple[str, ...]  # the user's, secrets masked
    origins: dict[str, str]  # dotted key → conf file, override, profile or default in code


def load_run(
    name: str, overrides: Sequence[str] = (), *, conf_dir: Path | None = None, detect: Callable[[], int] = gpu_count
) -> Loaded:
    """Compose conf `name` with Hydra `overrides` (a user's win over the profile's), check it, and freeze it.

    `conf_dir` is searched before the shipped confs; `detect` counts this machine's GPUs. Raises ConfigError for
    whatever is wrong with the conf, and MachineError when the machine lacks the GPUs that were asked for.
    """
    dirs = conf_dirs(conf_dir)
    require(name, conf_dir)
    options = groups(dirs)
    try:
        mine = _parse(overrides, options, where="in an override")
        with _hydra(name, dirs) as search:
            asked = compose(ROOT, overrides=[*search, *overrides])
            profiles = cast(dict[str, list[str]], OmegaConf.to_object(asked.profiles))
            profile = choose(cast(MachineConfig, OmegaConf.to_object(asked.machine)), profiles, detect)
            added = profiles.get(profile.name, [])
            theirs = _parse(added, options, where=f"in profiles.{profile.name} of {name}.yaml")
            everything = [*search, *added, *overrides]
            composed = compose(ROOT, overrides=everything) if added else asked
            files = GlobalHydra.instance().config_loader().compute_defaults_list(ROOT, everything, RunMode.RUN)
        if OmegaConf.is_missing(composed, "name"):
            composed.name = name
        _nothing_missing(composed)
        config = cast(RunConfig, OmegaConf.to_object(composed))
    except (HydraException, OmegaConfBaseException, YAMLError) as error:
        raise from_composer(error, KEYS.names, options) from error
    plain = values(config)
    by = {f"profile {profile.name}": theirs, "override": mine}
    layers = [Layer("the conf's name", {"name": name}), *_files(files.defaults, dirs, by), *_values(by, options)]
    origins = trace(layers, plain)
    if origins[TOKEN] == IN_CODE and (token := os.environ.get(TOKEN_VARIABLE)):
        config = replace(config, gateway=replace(config.gateway, token=token))
        origins[TOKEN] = TOKEN_VARIABLE
    check(config)
    return Loaded(
        config=config,
        profile=profile.name,
        profile_note=profile.note,
        yaml=rerunnable_yaml(plain, profile.name),
        values=plain,
        overrides=tuple(_masked(text, override) for text, override in zip(overrides, mine, strict=True)),
        origins=origins,
    )


def _parse(overrides: Sequence[str], options: Mapping[str, Sequence[str]], *, where: str) -> list[Override]:
    """Parse Hydra overrides and refuse what no run has, which `+key=value` would otherwise just add."""
    parser = OverridesParser.create()
    parsed = []
    for text in overrides:
        try:
            override = parser.parse_override(text)
        except HydraException as error:
            reason = str(error).splitlines()[0]
            raise ConfigError(
                f"'{text}' is not a valid override: {reason}", fix="write key=value; quote values: key='a, b'"
            ) from error
        key, value = override.key_or_group, override.value()
        if not key:
            raise ConfigError(f"'{text}' names no key", fix="write key=value")
        if override.is_sweep_override():
            raise ConfigError(f"'{text}' names several values", fix=f"give one, or a list: {key}=[…]")
        picks = key in options and not isinstance(value, dict | list)
        if picks and str(value) not in options[key] and not override.is_delete():
            raise unknown_option(key, str(value), options[key])
        if key not in options or isinstance(value, dict):
            unknown = [leaf for leaf in flatten(at(key, value)) if leaf not in KEYS]
            if unknown:
                raise unknown_key(unknown[0], {*KEYS.names, *options}, where=where)
            if override.is_delete() and key in KEYS.names:
                raise ConfigError(f"{key} cannot be taken away: every run has it", fix=f"give it a value: {key}=…")
        parsed.append(override)
    return parsed


@contextmanager
def _hydra(name: str, dirs: Sequence[ConfDir]) -> Iterator[list[str]]:
    """Hydra, ready to compose ROOT from these folders; gives the overrides that name the folders behind the first."""
    store = ConfigStore.instance()
    store.store(SCHEMA, _thawed_schema(), provider="saocli")
    store.store(ROOT, {"defaults": [SCHEMA, name, "_self_"]}, provider="saocli")
    behind = ",".join(f"'file://{folder.path}'" for folder in dirs[1:])
    with initialize_config_dir(str(dirs[0].path), version_base="1.3"):
        yield [f"hydra.searchpath=[{behind}]"] if behind else []


def _thawed_schema() -> DictConfig:
    """RunConfig as a node that can be merged into: frozen dataclasses give read-only nodes."""
    schema = OmegaConf.structured(RunConfig)

    def thaw(node: DictConfig) -> None:
        OmegaConf.set_readonly(node, None)
        for key in node:
            child = node._get_node(key)
            if isinstance(child, DictConfig):
                thaw(child)

    thaw(schema)
    return cast(DictConfig, schema)


def _nothing_missing(config: DictConfig) -> None:
    missing = sorted(OmegaConf.missing_keys(config))
    if missing:
        raise ConfigError(
            f"no value for {', '.join(missing)}",
            fix=f"give it in the conf or as an override: {missing[0]}=… (there is no default to fall back to)",
        )


def _files(
    merged: Sequence[ResultDefault], dirs: Sequence[ConfDir], by: Mapping[str, Sequence[Override]]
) -> list[Layer]:
    """The conf files, in merge order; those of a group that was chosen say by what."""
    chosen = {override.key_or_group: source for source, overrides in by.items() for override in overrides}
    layers = []
    for entry in merged:
        relative = entry.config_path or ""
        if file := find(relative, dirs):
            path, label = file
            group, _, option = relative.partition("/")
            source = f"{label} ({chosen[group]})" if option and group in chosen else label
            content = cast(dict[str, Any], OmegaConf.to_container(OmegaConf.load(path)))
            content.pop("defaults", None)
            layers.append(Layer(source, at(entry.package or "", content)))
    return layers


def _values(by: Mapping[str, Sequence[Override]], options: Mapping[str, Sequence[str]]) -> list[Layer]:
    """The overrides that set values, in merge order; those that choose a group's file are in the files' layers."""
    return [
        Layer(source, at(override.key_or_group, override.value()))
        for source, overrides in by.items()
        for override in overrides
        if override.key_or_group not in options or isinstance(override.value(), dict)
    ]


def _masked(text: str, override: Override) -> str:
    """A user's override as it may be written down."""
    sets = flatten(at(override.key_or_group, override.value()))
    return text if SECRETS.isdisjoint(sets) else f"{override.key_or_group}={MASK}"
