"""`sao conf`: the runs there are, and what each of them is made of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from saocli.cli.output import Json

if TYPE_CHECKING:
    from saocli.config.load import Loaded


def conf(
    tokens: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME] [key=value]…", help="A conf to print. Default: list them all.")
    ] = None,
    conf_dir: Annotated[str | None, typer.Option(help="A folder of confs in front of the shipped one.")] = None,
    as_json: Json = False,
) -> None:
    """List the confs, or print one resolved, each value with its origin."""
    from saocli.cli.output import print_columns, print_json
    from saocli.cli.tokens import conf_folder
    from saocli.config.confs import names

    if tokens:
        _show(_load([*tokens], conf_dir), as_json=as_json)
        return
    found = names(conf_folder(conf_dir))
    if as_json:
        print_json({"confs": [{"name": one.name, "description": one.description} for one in found]})
    else:
        print_columns([(one.name, one.description) for one in found], styles=("bold", ""))


def _load(tokens: list[str], conf_dir: str | None) -> Loaded:
    """A bare first word is the conf's name."""
    from saocli.cli.tokens import load_run_tokens, split

    first = split(tokens)
    if first.conf is None and first.words:
        tokens[tokens.index(first.words[0])] = f"conf={first.words[0]}"
    return load_run_tokens(tokens, conf_dir=conf_dir)


def _show(loaded: Loaded, *, as_json: bool) -> None:
    from saocli.cli.output import out, print_columns, print_json
    from saocli.config.origins import flatten

    if as_json:
        print_json(
            {
                "conf": loaded.config.name,
                "profile": loaded.profile,
                "profile_note": loaded.profile_note,
                "overrides": loaded.overrides,
                "config": loaded.values,
                "origins": loaded.origins,
            }
        )
        return
    out.print(f"[bold]{loaded.config.name}[/bold] · {loaded.profile_note}", soft_wrap=True)
    rows = [(key, _shown(value), loaded.origins[key]) for key, value in flatten(loaded.values).items()]
    print_columns(rows, styles=("bold", "cyan", "dim"))


def _shown(value: Any) -> str:
    """As a conf writes it: null, true, 1e-06; a string as it is."""
    import json

    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
