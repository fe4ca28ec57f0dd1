"""The gateway's HTTP API as any outside client sees it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any
from uuid import uuid4

import httpx

from saocli.config.tasks import TasksConfig
from saocli.errors import Refused, Unreachable
from saocli.types import Problem

RECEIPT_HEADER = "x-reef-agent-record-id"
LONG_POLL_S = 30.0
BROKEN = (httpx.ReadError, httpx.WriteError, httpx.RemoteProtocolError)
ATTEMPTS = 3
PAUSE_S = 0.2
BUSY = (429, 503)  # with a Retry-After: there is no room now, or a part of the service is coming back
PATIENCE_S = 300.0


class Client:
    """The gateway's routes that an attempt needs.

    A request that is told to come again (429 or 503 with Retry-After) is sent again for up to `patience_s` seconds: a
    generation so refused left no receipt, and a report has an id.
    """

    def __init__(
        self, url: str, token: str, *, scenario: str, timeout_s: float = 600.0, patience_s: float = PATIENCE_S
    ) -> None:
        self.url = url
        self._patience_s = patience_s
        self.scenario = scenario
        self._http = httpx.AsyncClient(
            base_url=url,
            headers={"authorization": f"Bearer {token}"},
            timeout=httpx.Timeout(timeout_s, connect=5.0),
            limits=httpx.Limits(max_connections=None),
        )

    async def close(self) -> None:
        await self._http.aclose()

    async def contract(self) -> dict[str, Any]:
        return await self._json("GET", f"/reef/scenarios/{self.scenario}/contract")

    async def answer(
        self, problem: Problem, *, config: TasksConfig, seed: int, temperature: float, scenario: str, tag: str
    ) -> tuple[str, dict[str, Any]]:
        """Ask for one answer; returns its receipt and the completion."""
        response = await self._send(
            "POST",
            "/v1/chat/completions",
            headers={"x-reef-scenario": scenario, "x-reef-tag-task": tag},
            json={
                "model": "sao",
                "messages": [dict(message) for message in problem.messages],
                "max_tokens": config.max_tokens,
                "temperature": temperature,
                "seed": seed,
                **({"stop": list(config.stop)} if config.stop else {}),
            },
        )
        return response.headers[RECEIPT_HEADER], response.json()

    async def report(self, receipts: Sequence[str], score: float, **fields: Any) -> dict[str, Any]:
        """Report a score. It has an id of its own, so that sending it again cannot make it train twice."""
        body = {"score": score, "references": list(receipts), "agent_record_id": uuid4().hex, **fields}
        return await self._json("POST", "/reef/report", json=body, headers={"x-reef-scenario": self.scenario})

    async def settled(self, receipt: str) -> dict[str, Any]:
        """Wait until a reported receipt is trained, dropped or known never to train."""
        while True:
            record = await self.record(receipt, wait_s=LONG_POLL_S)
            if record["state"] in ("trained", "dropped", "recorded"):
                return record

    async def record(self, receipt: str, *, wait_s: float = 0.0) -> dict[str, Any]:
        """Where a receipt stands, once that is final or after `wait_s` seconds."""
        path = f"/reef/scenarios/{self.scenario}/records"
        page = await self._json("GET", path, params={"receipt": receipt, "wait": wait_s})
        record: dict[str, Any] = page["records"][0]
        return record

    async def _json(self, method: str, path: str, **kwargs: Any) -> dict[str, Any]:
        answer: dict[str, Any] = (await self._send(method, path, **kwargs)).json()
        return answer

    async def _send(self, method: str, path: str, **kwargs: Any) -> httpx.Response:
        deadline = time.monotonic() + self._patience_s
        while True:
            response = await self._answered(method, path, **kwargs)
            pause = retry_after(response)
            if pause is None or time.monotonic() + pause > deadline:
                break
            await asyncio.sleep(pause)
        if response.is_error:
            waited = f", still after {self._patience_s:g} s" if pause is not None else ""
            raise Refused(f"{refusal(response)} (HTTP {response.status_code}{waited})", fix=_fix(response.status_code))
        return response

    async def _answered(self, method: str, path: str, **kwargs: Any) -> httpx.Response:
        attempts_left = ATTEMPTS
        while True:
            try:
                return await self._http.request(method, path, **kwargs)
            except httpx.TransportError as error:
                # A connection may break under a service that lives on (a laptop that slept); a refused one is the end.
                attempts_left -= 1
                if attempts_left == 0 or not isinstance(error, BROKEN):
                    raise Unreachable(
                        f"no answer from {self.url}: {str(error) or type(error).__name__}",
                        fix="start it with `sao serve`, or name it with --url",
                    ) from error
                await asyncio.sleep(PAUSE_S)


def retry_after(response: httpx.Response) -> float | None:
    """Seconds after which the service wants to be asked again; None when it does not say so."""
    given = response.headers.get("retry-after", "")
    return float(given) if response.status_code in BUSY and given.isdecimal() else None


def refusal(response: httpx.Response) -> str:
    """The service's own words about why it said no."""
    try:
        return str(response.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return response.text[:500] or response.reason_phrase


def _fix(status: int) -> str | None:
    return "give the token by SAO_TOKEN, or run from the folder that holds runs/" if status == 401 else None
