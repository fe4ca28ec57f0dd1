"""`engine.flags`: what this program has no key for, checked against the arguments of the SGLang that is installed."""

from __future__ import annotations

import functools
import json
import subprocess
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from saocli.config.keys import nearest
from saocli.errors import ConfigError, MachineError
from saocli.process import compute_env

# Runs in SGLang's interpreter. Only argparse knows for sure what that version takes.
_PROBE = """
import argparse, json
from sglang.srt.server_args import ServerArgs
parser = argparse.ArgumentParser(add_help=False)
ServerArgs.add_cli_args(parser)
print("\\n" + json.dumps([
    {"names": a.option_strings, "nargs": a.nargs, "choices": a.choices and [str(c) for c in a.choices]}
    for a in parser._actions if a.option_strings
]))
"""
_PROBE_TIMEOUT_S = 120


@dataclass(frozen=True)
class Flag:
    """One argument of the server: whether it takes no value (0), one (None) or several (+, *), and which."""

    nargs: str | int | None
    choices: tuple[str, ...] | None


@functools.cache
def known_flags(python: str) -> Mapping[str, Flag]:
    """Every `--flag` of the SGLang in interpreter `python`. Takes seconds, so it is asked once."""
    try:
        done = subprocess.run(
            [python, "-c", _PROBE],
            env=compute_env(1, {"PYTHONPATH": ""}),
            capture_output=True,
            text=True,
            timeout=_PROBE_TIMEOUT_S,
            check=True,
        )
        actions = json.loads(done.stdout.splitlines()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError) as error:
        said = str(getattr(error, "stderr", "") or error).strip().splitlines()
        raise MachineError(
            f"SGLang's arguments could not be asked from {python}: {said[-1] if said else error!r}",
            fix="engine.flags are checked against them; leave engine.flags out, or repair that environment",
        ) from error
    return {
        name: Flag(nargs=action["nargs"], choices=action["choices"] and tuple(action["choices"]))
        for action in actions
        for name in action["names"]
    }


def arguments(flags: Mapping[str, Any], known: Mapping[str, Flag], taken: Collection[str]) -> list[str]:
    """`engine.flags` as command-line arguments. `taken`: flags that other keys of the conf set.

    `true` gives the bare flag, `false` and null leave it out, a list gives several values. Raises ConfigError.
    """
    argv: list[str] = []
    for key, value in flags.items():
        name = "--" + key.lstrip("-").replace("_", "-")
        flag = known.get(name)
        if flag is None:
            guess = nearest(name, known)
            raise ConfigError(
                f"engine.flags.{key} is not an argument of this SGLang",
                fix=f"did you mean {guess.removeprefix('--')}?"
                if guess
                else "see python -m sglang.launch_server --help",
            )
        if name in taken:
            raise ConfigError(f"engine.flags.{key} is set by this program", fix="use the conf's own key for it")
        argv += _one(key, name, value, flag)
    return argv


def _one(key: str, name: str, value: Any, flag: Flag) -> list[str]:
    if value is None or value is False:
        return []
    if value is True:
        if flag.nargs != 0 and flag.choices is None:
            raise ConfigError(f"engine.flags.{key} is true, but it takes a value", fix="give it one")
        return [name]
    if flag.nargs == 0:
        raise ConfigError(f"engine.flags.{key} is {value!r}, but it takes no value", fix="set it to true")
    if isinstance(value, list) and flag.nargs is None:
        raise ConfigError(f"engine.flags.{key} is a list, but it takes one value", fix="give one value")
    texts = [str(item) for item in value] if isinstance(value, list) else [str(value)]
    for text in texts:
        if flag.choices is not None and text not in flag.choices:
            raise ConfigError(f"engine.flags.{key} is {text}", fix=f"there are: {' · '.join(flag.choices)}")
    return [name, *texts]
