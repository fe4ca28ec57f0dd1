"""Finding the service a client command talks to, and asking it one thing."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from saocli.errors import Refused, Unreachable
from saocli.store.run import RunDirectory, live_runs

RUNS = Path("runs")
DEFAULT_URL = "http://127.0.0.1:8900"
DEFAULT_TOKEN = "reef-local"


@dataclass(frozen=True)
class Service:
    """Where a service answers and who we are to it."""

    url: str
    token: str
    run: RunDirectory | None  # when it runs on this machine, under runs/
    scenario: str | None

    def get(self, path: str) -> dict[str, Any]:
        """The JSON answer to GET `path`. Raises Unreachable or Refused."""
        return self._ask("GET", path, timeout=30)

    def post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """The JSON answer to POST `path`, however long it takes. Raises Unreachable or Refused."""
        return self._ask("POST", path, json=body, timeout=None)

    def _ask(self, method: str, path: str, **options: Any) -> dict[str, Any]:
        import httpx

        from saocli.client import refusal

        headers = {"authorization": f"Bearer {self.token}"}
        try:
            response = httpx.request(method, self.url + path, headers=headers, **options)
        except httpx.TransportError as error:
            raise Unreachable(
                f"no answer from {self.url}: {error}", fix="start it with `sao serve`, or name it with --url"
            ) from error
        if response.is_error:
            raise Refused(f"{refusal(response)} (HTTP {response.status_code})")
        answer: dict[str, Any] = response.json()
        return answer

    def trained_scenario(self) -> str:
        """The scenario that this service trains."""
        return self.scenario or str(self.get("/reef/status")["scenario"])


def find_service(url: str | None) -> Service:
    """By --url or SAO_URL, else the newest live run under runs/, else the default address."""
    url = url or os.environ.get("SAO_URL") or None
    live = live_runs(RUNS)
    for service, run in ((run.service(), run) for run in live):
        if url is None or service["url"] == url.rstrip("/"):
            token = os.environ.get("SAO_TOKEN") or run.token()
            return Service(service["url"], token, run, service["scenario"])
    return Service((url or DEFAULT_URL).rstrip("/"), os.environ.get("SAO_TOKEN") or DEFAULT_TOKEN, None, None)


def newest_run(name: str | None = None) -> RunDirectory:
    """The named run, a live one, or the latest there is."""
    if name is not None:
        path = Path(name) if Path(name).is_dir() else RUNS / name
        return RunDirectory.open(path)
    live = live_runs(RUNS)
    return live[0] if live else RunDirectory.open(RUNS / "latest")
