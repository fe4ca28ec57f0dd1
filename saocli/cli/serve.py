"""`sao serve`: start the stack, train what is reported, stop everything that was started."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    import socket

    from saocli.config.load import Loaded
    from saocli.store.run import RunDirectory


def serve(
    tokens: Annotated[list[str] | None, typer.Argument(metavar="conf=NAME [key=value]…")] = None,
    resume: Annotated[str | None, typer.Option(metavar="RUN", help="Go on with this run, or with `latest`.")] = None,
    drive: Annotated[bool, typer.Option("--drive", help="Play the conf's tasks, exit when all are trained.")] = False,
    steps: Annotated[int | None, typer.Option(help="Stop once the run has this many commits.", min=1)] = None,
    detach: Annotated[bool, typer.Option("--detach", help="Return once healthy.")] = False,
    conf_dir: Annotated[str | None, typer.Option(help="A folder of confs in front of the shipped one.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="JSON lines on stdout.")] = False,
    run_dir: Annotated[str | None, typer.Option("--run-dir", hidden=True, help="Used by --detach.")] = None,
) -> None:
    """Start engine, trainer and gateway; train one graded rollout at a time."""
    from saocli.cli.resume import load_resumed
    from saocli.cli.service import RUNS
    from saocli.cli.tokens import load_run_tokens
    from saocli.environment import environment
    from saocli.gateway.server import bind
    from saocli.store.run import RunDirectory

    how: dict[str, Any] = {"drive": drive, "steps": steps, "as_json": as_json}
    if resume is not None:
        loaded, directory = load_resumed(resume, tokens or [], conf_dir=conf_dir)
        gateway = loaded.config.gateway
        with directory.lock():
            directory.remove_service()  # a killed process leaves it behind
            if not detach:
                with bind(gateway.host, gateway.port) as listener:
                    raise typer.Exit(_foreground(loaded, directory, listener, **how))
        _detach(directory, gateway.token, as_json=as_json)
        return
    loaded = load_run_tokens(tokens or [], conf_dir=conf_dir)
    gateway = loaded.config.gateway
    # The port before the run directory: a start that cannot listen leaves nothing behind.
    with bind(gateway.host, gateway.port) as listener:
        directory = RunDirectory.open(Path(run_dir)) if run_dir else RunDirectory.create(RUNS, loaded.config.name)
        directory.write_config(loaded.yaml, loaded.overrides)
        if detach:
            listener.close()  # the service of its own takes it again
            _detach(directory, gateway.token, as_json=as_json)
        else:
            directory.write_environment(environment())
            with directory.lock():
                raise typer.Exit(_foreground(loaded, directory, listener, **how))


def _foreground(
    loaded: Loaded,
    directory: RunDirectory,
    listener: socket.socket,
    *,
    drive: bool,
    steps: int | None,
    as_json: bool,
) -> int:
    from saocli import __version__
    from saocli.cli.live import RunView
    from saocli.cli.output import err, out
    from saocli.wire import run

    config = loaded.config
    view = RunView(err if as_json else out, as_json=as_json)
    with view.running():
        view.title(
            f"sao {__version__} · {config.name} · {loaded.profile_note} · {directory.path}",
            conf=config.name,
            profile=loaded.profile,
            run=str(directory.path),
        )
        outcome = asyncio.run(_until_stopped(run, loaded, directory, view, listener, drive, steps or config.steps))
    dropped = sum(outcome["dropped"].values())
    view.end(
        f"{outcome['trained']} rollouts trained · {outcome['queued']} queued on disk · {dropped} dropped · "
        f"head {outcome['head']} · {directory.path}",
        **outcome,
    )
    return 130 if outcome["interrupted"] else 0


async def _until_stopped(
    run: Any, loaded: Loaded, directory: RunDirectory, view: Any, listener: Any, drive: bool, steps: int | None
) -> dict[str, Any]:
    """Run until done; the first signal drains, a second one kills."""
    stop = asyncio.Event()
    interrupted = False
    loop = asyncio.get_running_loop()
    main = asyncio.current_task()
    assert main is not None

    def on_signal(number: int) -> None:
        nonlocal interrupted
        if stop.is_set():
            main.cancel()
        interrupted = number == signal.SIGINT
        view.say("stopping: training what is queued (again to stop at once)", style="yellow")
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal, number)
    try:
        outcome = await run(loaded.config, directory, view, listener=listener, drive=drive, last_step=steps, stop=stop)
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
    return asdict(outcome) | {"interrupted": interrupted}


def _detach(directory: RunDirectory, token: str, *, as_json: bool) -> None:
    """Start the same command in a session of its own and wait until it is healthy."""
    from saocli.cli.output import out, print_json
    from saocli.cli.tokens import reveals_secret
    from saocli.errors import RunError
    from saocli.process import tail

    log = directory.logs / "serve.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    # Everybody on this machine can read a command line, and the service's stays for long.
    arguments = [
        argument for argument in sys.argv[1:] if argument not in ("--detach", "--json") and not reveals_secret(argument)
    ]
    with log.open("ab") as file:
        child = subprocess.Popen(
            [sys.executable, "-m", "saocli.cli.app", *arguments, "--run-dir", str(directory.path)],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
            env=os.environ | {"NO_COLOR": "1", "SAO_TOKEN": token},
        )
    while not directory.service_json.exists():
        if child.poll() is not None:
            print(tail(log), file=sys.stderr)
            raise RunError(f"the service ended with status {child.returncode} while starting", fix=f"its log: {log}")
        time.sleep(0.1)
    answer = {**directory.service(), "run": str(directory.path)}
    if as_json:
        print_json(answer)
    else:
        out.print(f"serving {answer['url']}  scenario {answer['scenario']}  {directory.path}  (`sao stop` ends it)")
