"""GET /reef/scenarios/{scenario}/records: receipts and reports with their state, paged; or one receipt, waited for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from typing import Any, TypeVar

from fastapi import Request
from fastapi.responses import JSONResponse
from starlette.responses import Response

from saocli.gateway.context import known_scenario
from saocli.gateway.deps import GatewayDeps
from saocli.gateway.errors import CLIENT_CLOSED, ApiError, invalid
from saocli.gateway.stream import ClientGone, unless_gone
from saocli.store.entries import ReceiptEntry, ReceiptState, ReportEntry

T = TypeVar("T", int, float)
MAX_WAIT_S = 600.0
MAX_PAGE = 1000
PARAMETERS = ("after", "limit", "receipt", "wait")


async def list_records(deps: GatewayDeps, request: Request) -> Response:
    """`?after=SEQ&limit=N` pages; `?receipt=ID` shows one with its tokens, `&wait=SECONDS` once its state is final."""
    scenario = await known_scenario(deps, request)
    receipt = request.query_params.get("receipt")
    unknown = sorted(set(request.query_params) - set(PARAMETERS))
    if unknown:
        raise invalid(unknown[0], f"is not a parameter of records; there are {', '.join(PARAMETERS)}")
    wait = _query(request, "wait", float, default=0.0, low=0.0, high=MAX_WAIT_S)
    if receipt is not None:
        try:
            record = await unless_gone(request.receive, _settled(deps, scenario, receipt, wait))
        except ClientGone:
            return Response(status_code=CLIENT_CLOSED)
        return JSONResponse({"scenario": scenario, "records": [record], "next": None})
    after = _query(request, "after", int, default=0, low=0, high=2**63 - 1)
    limit = _query(request, "limit", int, default=100, low=1, high=MAX_PAGE)
    page = await asyncio.to_thread(deps.records.page, scenario, after, limit)
    following = page[-1].seq if len(page) == limit else None
    return JSONResponse({"scenario": scenario, "records": [entry_json(entry) for entry in page], "next": following})


async def _settled(deps: GatewayDeps, scenario: str, receipt: str, wait: float) -> dict[str, Any]:
    """The receipt as it is, after at most `wait` seconds for it to be trained, dropped or known never to train."""
    with suppress(TimeoutError):
        async with asyncio.timeout(wait):
            while True:
                changed = deps.changes.upcoming()
                standing = await asyncio.to_thread(deps.records.receipt_state, receipt)
                if standing is None or standing.state.final:
                    break
                await changed.wait()
    record = await asyncio.to_thread(_detail, deps, receipt)
    if record is None or record["scenario"] != scenario:
        raise ApiError(404, f"no receipt {receipt!r} in scenario {scenario}", code="receipt_not_found", param="receipt")
    return record


def _detail(deps: GatewayDeps, receipt: str) -> dict[str, Any] | None:
    entry, exchange = deps.records.entry(receipt), deps.records.get_exchange(receipt)
    if entry is None or exchange is None:
        return None
    return entry_json(entry) | {
        "prompt_ids": exchange.prompt_ids,
        "output_ids": exchange.output_ids,
        "logprobs": exchange.logprobs,
        "spans": [asdict(span) for span in exchange.spans],
    }


def entry_json(entry: ReceiptEntry | ReportEntry) -> dict[str, Any]:
    """One record, as JSON."""
    if isinstance(entry, ReportEntry):
        report = entry.report
        return {
            "agent_record_id": report.id,
            "request_type": "report",
            "scenario": report.scenario,
            "created_at": report.created_at,
            "score": report.score,
            "references": report.references,
            "feedback": report.feedback,
            "metadata": dict(report.metadata),
            "trains": entry.trains,
        } | _standing_json(entry.standing)
    return {
        "agent_record_id": entry.receipt,
        "request_type": "inference",
        "scenario": entry.scenario,
        "created_at": entry.created_at,
        "session": entry.session,
        "tags": dict(entry.tags),
        "prompt_tokens": entry.prompt_tokens,
        "completion_tokens": entry.output_tokens,
        "weight_versions": entry.versions,
        "sampling": asdict(entry.sampling),
        "finish_reason": entry.finish_reason,
        "text": entry.text,
        "trainable": entry.trainable,
        "why_not": entry.why_not,
    } | _standing_json(entry.standing)


def _standing_json(standing: ReceiptState) -> dict[str, Any]:
    return asdict(standing)


def _query(request: Request, name: str, kind: Callable[[str], T], *, default: T, low: T, high: T) -> T:
    given = request.query_params.get(name)
    if given is None:
        return default
    try:
        value = kind(given)
    except ValueError:
        raise invalid(name, f"must be a number, got {given!r}") from None
    if not low <= value <= high:
        raise invalid(name, f"must be from {low} to {high}, got {given}")
    return value
