"""Where confs lie on disk, and which of them can be run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

import saocli
from saocli.config.keys import nearest
from saocli.errors import ConfigError

NOT_A_RUN = frozenset({"base"})


@dataclass(frozen=True)
class ConfDir:
    """One folder of confs and how its files are called in messages."""

    path: Path
    label: str


@dataclass(frozen=True)
class RunnableConf:
    """A line of `sao conf`."""

    name: str
    description: str


def shipped() -> Path:
    """The conf folder that came with the program: packed into the wheel, or next to the package in a checkout."""
    package = Path(saocli.__file__).parent
    packed = package / "_conf"
    return packed if packed.is_dir() else package.parent / "conf"


def conf_dirs(conf_dir: Path | None) -> tuple[ConfDir, ...]:
    """The folders to search, first match wins: the user's, if any, then the shipped one. Raises ConfigError."""
    own = ConfDir(shipped(), "conf")
    if conf_dir is None:
        return (own,)
    if not conf_dir.is_dir():
        raise ConfigError(f"the conf folder {conf_dir} does not exist", fix="check --conf-dir or SAO_CONF_DIR")
    return (ConfDir(conf_dir.resolve(), str(conf_dir)), own)


def find(relative: str, dirs: Sequence[ConfDir]) -> tuple[Path, str] | None:
    """Path and label of `relative`.yaml in the first folder that has it."""
    for folder in dirs:
        path = folder.path / f"{relative}.yaml"
        if path.is_file():
            return path, f"{folder.label}/{relative}.yaml"
    return None


def groups(dirs: Sequence[ConfDir]) -> dict[str, tuple[str, ...]]:
    """The choices there are: group name → its options, sorted."""
    found: dict[str, set[str]] = {}
    for folder in dirs:
        for file in folder.path.glob("*/*.yaml"):
            found.setdefault(file.parent.name, set()).add(file.stem)
    return {group: tuple(sorted(options)) for group, options in sorted(found.items())}


def names(conf_dir: Path | None = None) -> list[RunnableConf]:
    """Every conf that `conf=NAME` accepts, by name; the user's folder hides shipped confs of the same name."""
    found: dict[str, RunnableConf] = {}
    for folder in conf_dirs(conf_dir):
        for file in sorted(folder.path.glob("*.yaml")):
            if file.stem not in NOT_A_RUN and file.stem not in found:
                found[file.stem] = RunnableConf(file.stem, _description(file))
    return [found[name] for name in sorted(found)]


def _description(file: Path) -> str:
    try:
        return str(OmegaConf.select(OmegaConf.load(file), "description", default=""))
    except (YAMLError, OmegaConfBaseException, OSError) as error:
        raise ConfigError(f"{file} cannot be read: {' '.join(str(error).split())}") from error


def require(name: str, conf_dir: Path | None) -> None:
    """Raise the ConfigError that lists the confs unless `name` is one of them."""
    known = [conf.name for conf in names(conf_dir)]
    if name not in known:
        guess = nearest(name, known)
        hint = f" — did you mean {guess}?" if guess else ""
        raise ConfigError(f"no conf named '{name}'{hint}", fix=f"{' · '.join(known)}   (sao conf lists them)")
