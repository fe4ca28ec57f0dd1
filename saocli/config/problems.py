"""What composition says when it fails, in our words: the key, the value, the file, and the nearest key there is."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

from saocli.config.keys import nearest
from saocli.errors import ConfigError

FULL_KEY = re.compile(r"full_key: (\S+)")
IN_FILE = re.compile(r"In '(\S+)'")
UNKNOWN = re.compile(r"Key '.*' (?:not in|is not in struct)")
NO_SUCH_OPTION = re.compile(r"Could not find '([^'/]+)/([^']+)'")
NOT_OPTIONAL = re.compile(r"field '.*' is not Optional")
CHOICES = re.compile(r"expected one of \[(.*)\]")
# Lines that only a developer of the composer can use.
NOISE = re.compile(
    r"^\s*(full_key:|reference_type=|object_type=|See https://|Error merging override|.*raised while composing)"
)


def unknown_key(key: str, known: Collection[str], *, where: str) -> ConfigError:
    """A key that no run has."""
    guess = nearest(key, known)
    return ConfigError(
        f"unknown key {key} {where}", fix=f"did you mean {guess}?" if guess else "sao conf NAME lists the keys"
    )


def unknown_option(group: str, option: str, options: Collection[str]) -> ConfigError:
    """A file that a group does not have."""
    guess = nearest(option, options)
    hint = f" — did you mean {guess}?" if guess else ""
    return ConfigError(f"no {group} named '{option}'{hint}", fix=f"there are: {' · '.join(options)}")


def from_composer(error: BaseException, known: Collection[str], options: Mapping[str, Sequence[str]]) -> ConfigError:
    """The ConfigError for an exception that Hydra or OmegaConf raised while composing or resolving a run."""
    said = "\n".join(filter(None, (str(error), str(error.__cause__ or ""))))
    key = FULL_KEY.search(said)
    file = IN_FILE.search(said)
    where = f"in {file.group(1)}.yaml" if file else "in an override"
    if option := NO_SUCH_OPTION.search(said):
        return unknown_option(option.group(1), option.group(2), options.get(option.group(1), ()))
    if key and UNKNOWN.search(said):
        return unknown_key(key.group(1), known, where=where)
    lines = [line.strip() for line in said.splitlines() if line.strip() and not NOISE.match(line)]
    text = CHOICES.sub(
        lambda found: f"expected one of {found.group(1).lower()}", " ".join(lines) or type(error).__name__
    )
    text = NOT_OPTIONAL.sub("it may not be null", text)
    if key and not text.startswith(key.group(1)):
        text = f"{key.group(1)}: {text}"
    return ConfigError(text if file is None else f"{text} ({where})")
