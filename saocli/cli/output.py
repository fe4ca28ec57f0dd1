"""What goes to stdout and stderr: colours on a terminal, plain whole lines in a pipe, JSON for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from saocli.errors import SaoError

# In a pipe nothing is folded or cut to fit: the reader is a program or a file.
PIPE_WIDTH = 1000

Json = Annotated[bool, typer.Option("--json", help="JSON on stdout, everything else on stderr.")]


def console(*, stderr: bool) -> Console:
    """A console on stdout or stderr; Rich drops colours for NO_COLOR and outside a terminal."""
    stream = sys.stderr if stderr else sys.stdout
    return Console(stderr=stderr, highlight=False, width=None if stream.isatty() else PIPE_WIDTH)


out = console(stderr=False)
err = console(stderr=True)


def print_json(document: Any) -> None:
    """One JSON document on one line of stdout. Raises ValueError for a NaN or infinity, which JSON cannot carry."""
    print(json.dumps(document, ensure_ascii=False, allow_nan=False), flush=True)


def print_error(error: SaoError, *, as_json: bool) -> None:
    """The error and its fix on stderr; with `as_json` as one JSON line."""
    if as_json:
        body = {"kind": type(error).__name__, "message": error.message, "fix": error.fix, "exit_code": error.exit_code}
        print(json.dumps({"error": body}, ensure_ascii=False), file=sys.stderr, flush=True)
        return
    word = "refused" if error.exit_code == 4 else "error"
    line = Text(f"{word}: ", style="bold red").append(error.message, style="not bold default")
    err.print(line, soft_wrap=True)
    if error.fix:
        err.print(Text(f"       {error.fix}", style="dim"), soft_wrap=True)


def print_columns(rows: Sequence[Sequence[str]], *, styles: Sequence[str] = ()) -> None:
    """Aligned columns on stdout: a long cell folds in its column on a terminal, and stays whole in a pipe."""
    if out.is_terminal:
        grid = Table.grid(padding=(0, 2))
        for index in range(len(rows[0])):
            grid.add_column(style=styles[index] if styles else "", overflow="fold")
        for row in rows:
            grid.add_row(*(Text(cell) for cell in row))
        out.print(grid)
        return
    # One long cell must not push every row's next column away.
    widths = [max((len(cell) for cell in column if len(cell) <= 60), default=60) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
