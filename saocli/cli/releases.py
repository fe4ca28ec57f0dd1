"""`sao releases`: the version chain."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer

releases = typer.Typer(
    help="The version chain: list, show, roll back, export.", invoke_without_command=True, no_args_is_help=False
)
Url = Annotated[str | None, typer.Option(help="The service's address.")]
Run = Annotated[str | None, typer.Option(help="A run directory or its name; default: the live or latest one.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]


@releases.callback()
def list_releases(context: typer.Context, url: Url = None, run: Run = None, as_json: Json = False) -> None:
    """The chain as a table, newest first."""
    if context.invoked_subcommand is not None:
        return
    from saocli.cli.output import print_columns, print_json

    chain = _chain(url, run)
    if as_json:
        print_json(chain)
        return
    rows = [("release", "operation", "weights", "reward", "created", "checkpoint", "digest", "")]
    for entry in chain["releases"]:
        reward = entry["metrics"].get("reward/mean")
        rows.append(
            (
                entry["release_id"],
                entry["operation"],
                entry["weight_version"],
                "–" if reward is None else f"{reward:g}",
                time.strftime("%m-%d %H:%M:%S", time.localtime(entry["created_at"])),
                entry["checkpoint"] or "–",
                entry["digest"][:12],
                "◀ current" if entry["current"] else "",
            )
        )
    print_columns(rows)


@releases.command()
def show(release_id: str, url: Url = None, run: Run = None, as_json: Json = False) -> None:
    """One release with its metrics."""
    from saocli.cli.output import print_columns, print_json
    from saocli.errors import Refused

    chain = _chain(url, run)["releases"]
    entry = next((entry for entry in chain if entry["release_id"] == release_id), None)
    if entry is None:
        raise Refused(
            f"no release {release_id!r}", fix=f"the newest are: {' · '.join(e['release_id'] for e in chain[:5])}"
        )
    if as_json:
        print_json(entry)
        return
    rows: dict[str, Any] = {key: value for key, value in entry.items() if key != "metrics"} | entry["metrics"]
    print_columns([(key, _shown(value)) for key, value in rows.items()], styles=("bold", ""))


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(value) or "–"
    if value is None:
        return "–"
    return f"{value:.6g}" if isinstance(value, float) and value < 1e9 else str(value)


@releases.command()
def rollback(release_id: str, url: Url = None, as_json: Json = False) -> None:
    """Make an earlier release the head again: its weights serve, and training goes on from it."""
    from saocli.cli.output import out, print_json
    from saocli.cli.service import find_service

    service = find_service(url)
    path = f"/reef/scenarios/{service.trained_scenario()}/rollback"
    # Between two steps, after its training since the last state on disk was made again: that takes as long as it takes.
    head = service.post(path, {"release_id": release_id})
    print_json(head) if as_json else out.print(f"{head['release_id']} serves the weights of {release_id} again")


@releases.command()
def export(release_id: str, folder: Path, run: Run = None, as_json: Json = False) -> None:
    """Copy a release's weights to FOLDER, a Hugging Face model folder."""
    import shutil

    from saocli.cli.output import out, print_json
    from saocli.cli.service import newest_run
    from saocli.errors import Refused
    from saocli.store.chain import weights_folder

    directory = newest_run(run)
    release = directory.releases_reader().get(release_id)
    if release is None:
        raise Refused(f"no release {release_id!r} in {directory.path}", fix="`sao releases` lists them")
    source = weights_folder(directory, release)
    if source is None:
        raise Refused(
            f"the weights of {release_id} are no longer on disk", fix="raise releases.keep_last to keep more of them"
        )
    if folder.exists() and any(folder.iterdir()):
        raise Refused(f"{folder} is not empty", fix="name a new folder")
    shutil.copytree(source, folder, dirs_exist_ok=True)
    answer = {"release_id": release_id, "folder": str(folder), "digest": release.digest}
    print_json(answer) if as_json else out.print(f"{release_id} → {folder}  (digest {release.digest[:12]})")


def _chain(url: str | None, run: str | None) -> dict[str, Any]:
    """From the service when one answers, else from the run directory."""
    from saocli.cli.service import find_service, newest_run
    from saocli.gateway.releases import release_json

    service = find_service(url)
    if run is None and (url is not None or service.run is not None):
        return service.get(f"/reef/scenarios/{service.trained_scenario()}/releases")
    directory = newest_run(run)
    scenario = directory.scenario()
    return {
        "scenario": scenario,
        "releases": [release_json(entry) for entry in directory.releases_reader().list(scenario)],
    }
