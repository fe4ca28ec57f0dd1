"""`sao`: the commands by name, and how a failure leaves the program.

Exit codes: 0 ok, 1 the run failed, 2 bad usage or config, 3 service unreachable, 4 refused by the service, 5 the
machine lacks what the conf needs, 130 interrupted.
"""

from __future__ import annotations

import sys

import typer

from saocli.cli.attempt import attempt
from saocli.cli.compare import compare
from saocli.cli.conf import conf
from saocli.cli.doctor import doctor
from saocli.cli.releases import releases
from saocli.cli.report import report
from saocli.cli.serve import serve
from saocli.cli.status import status, stop, watch
from saocli.errors import SaoError

app = typer.Typer(
    name="sao",
    help="Train a language model on one graded rollout at a time while it serves.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_show_locals=False,  # locals hold tokens
)


@app.callback()
def _root() -> None:
    """Train a language model on one graded rollout at a time while it serves."""


app.command()(serve)
app.command()(attempt)
app.command()(report)
app.add_typer(releases, name="releases")
app.command()(status)
app.command()(stop)
app.command()(watch)
app.command()(compare)
app.command()(conf)
app.command()(doctor)


def main() -> None:
    """Run the command line and exit with its code."""
    try:
        app(prog_name="sao")
    except SaoError as error:
        from saocli.cli.output import print_error

        print_error(error, as_json="--json" in sys.argv)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
