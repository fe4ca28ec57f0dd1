"""`sao status`, `sao stop`, `sao watch`: looking at a run, and ending it."""

from __future__ import annotations

import json
import os
import signal
import time
from typing import Annotated, Any

import typer

Url = Annotated[str | None, typer.Option(help="The service's address.")]
Json = Annotated[bool, typer.Option("--json", help="JSON on stdout.")]


def status(url: Url = None, as_json: Json = False) -> None:
    """What runs: phase, queue, serving version, drops, processes."""
    from saocli.cli.output import print_columns, print_json
    from saocli.cli.service import find_service

    service = find_service(url)
    answer = service.get("/reef/status")
    if as_json:
        print_json(answer)
        return
    record = answer["last_step"]
    shown = {
        "url": service.url,
        "model": answer["model"],
        "scenario": answer["scenario"],
        "health": "ok" if answer["health"]["ok"] else answer["health"]["reason"],
        "phase": answer["phase"],
        "serving": _pairs(answer["serving"] or {}),
        "queue": _pairs(answer["queue"]),
        "drops": _pairs(answer["drops"]),
        "processes": _pairs({name: _process(part) for name, part in answer["processes"].items()}),
        "last step": f"{record['step']}  reward {record['reward/mean']:g}  {record['time/step_s']:.1f} s"
        if record
        else "–",
    }
    print_columns(list(shown.items()), styles=("bold", ""))


def _process(part: dict[str, Any]) -> str:
    shown = str(part["pid"] or "up") if part["alive"] else "down"
    return f"{shown} (started again {part['restarts']}×)" if part.get("restarts") else shown


def _pairs(values: dict[str, Any]) -> str:
    return "  ".join(f"{name} {value}" for name, value in values.items()) or "–"


def stop(
    url: Url = None,
    timeout: Annotated[float, typer.Option(help="Seconds to wait for it to drain and end.")] = 120.0,
    as_json: Json = False,
) -> None:
    """Stop the run: train what is queued, save, end every process."""
    from saocli.cli.output import out, print_json
    from saocli.cli.service import find_service
    from saocli.errors import RunError, Unreachable

    service = find_service(url)
    if service.run is None:
        raise Unreachable("no live run under runs/", fix="run this from the folder where `sao serve` was started")
    pid = int(service.run.service()["pid"])
    os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + timeout
    while service.run.service_json.exists():
        if time.monotonic() > deadline:
            raise RunError(f"process {pid} still runs after {timeout:g} s", fix="`kill -9` ends it; the queue stays")
        time.sleep(0.1)
    answer = {"run": str(service.run.path), "pid": pid, "stopped": True}
    print_json(answer) if as_json else out.print(f"stopped {service.run.path} (process {pid})")


def watch(
    run: Annotated[str | None, typer.Argument(help="A run directory, or its name under runs/.")] = None,
    as_json: Json = False,
) -> None:
    """Follow a run's steps until it ends."""
    from saocli.cli.output import out
    from saocli.cli.service import newest_run
    from saocli.metrics.table import header, styled_row

    directory = newest_run(run)
    if not as_json:
        out.print(f"[bold]{directory.path}")
        out.print(header(), soft_wrap=True)
    position = 0
    while True:
        alive = directory.service_json.exists()
        if directory.metrics_jsonl.exists():
            with directory.metrics_jsonl.open() as file:
                file.seek(position)
                while (line := file.readline()).endswith("\n"):
                    position = file.tell()
                    if as_json:
                        print(line, end="", flush=True)
                    else:
                        out.print(styled_row(json.loads(line)), soft_wrap=True)
        if not alive:
            return
        time.sleep(0.2)
