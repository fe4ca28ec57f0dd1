"""GET /metrics: the service in Prometheus' text format."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Mapping
from typing import Any

from fastapi import Request
from starlette.responses import Response

from saocli.gateway.deps import GatewayDeps
from saocli.gateway.prometheus import CONTENT_TYPE, Family, exposition

# Of a step record: what names it, what is given elsewhere, and what is no single number.
NOT_A_GAUGE = re.compile(r"release|parent|operation|arm|advantage|noop_reason|actor_idle|scores|moments|dropped/.*")


async def metrics(deps: GatewayDeps, request: Request) -> Response:
    """Counters of what is on disk (they go on over a restart) and of requests since the start; gauges of now."""
    text = await asyncio.to_thread(lambda: exposition(_families(deps)))
    return Response(text, headers={"content-type": CONTENT_TYPE})


def _families(deps: GatewayDeps) -> Iterator[Family]:
    counts, added = deps.records.counts(), deps.status()
    head = deps.releases.head(deps.scenario)
    yield _gauge("sao_up", "1 when the service can answer, 0 while a part is missing.", deps.health().ok)
    yield Family(
        name="sao_process_up",
        kind="gauge",
        help="1 while the process lives.",
        samples=[({"process": name}, bool(state["alive"])) for name, state in added.get("processes", {}).items()],
    )
    yield Family(
        name="sao_receipts_total",
        kind="counter",
        help="Recorded generations.",
        samples=[({}, deps.records.generations())],
    )
    yield _gauge("sao_receipts_open", "Trainable receipts without a report.", counts.open)
    yield Family(
        name="sao_reports",
        kind="gauge",
        help="Accepted reports by where they stand, and why those stand there that do not train.",
        samples=[
            ({"state": state, "reason": reason or ""}, count) for (state, reason), count in deps.records.tally().items()
        ],
    )
    yield _gauge("sao_queue_reports", "Reports that wait for a step or are in one.", counts.queued + counts.leased)
    yield Family(
        name="sao_reports_trained_total",
        kind="counter",
        help="Reports that a release was trained on.",
        samples=[({}, counts.trained)],
    )
    yield Family(
        name="sao_releases_total",
        kind="counter",
        help="Committed releases by operation.",
        samples=[({"operation": kind}, count) for kind, count in deps.releases.tally(deps.scenario).items()],
    )
    if head is not None:
        yield _gauge("sao_release_step", "The step of the release that serves.", head.step)
        yield _gauge("sao_release_created_timestamp_seconds", "When it was committed.", head.created_at)
    yield _gauge("sao_generations_running", "Generations that run now.", deps.admission.running)
    yield Family(
        name="sao_http_requests_total",
        kind="counter",
        help="Answered requests since the service started.",
        samples=[
            ({"method": method, "route": route, "status": str(status)}, count)
            for (method, route, status), count in sorted(deps.answered.items())
        ],
    )
    yield from _last_step(added.get("last_step") or {})


def _last_step(record: Mapping[str, Any]) -> Iterator[Family]:
    """The numbers of the last step's record; those that are undefined are left out."""
    for key, value in record.items():
        if isinstance(value, int | float) and not NOT_A_GAUGE.fullmatch(key):
            yield _gauge(_step_name(key), f"{key} of the last step.", value)


def _step_name(key: str) -> str:
    name = re.sub(r"[^a-zA-Z0-9_]", "_", key.removeprefix("sao/"))
    # The unit is the last word, spelled out; what comes after it is the statistic.
    name = re.sub(r"_s(?=$|_(?:mean|max|min)$)", "_seconds", name)
    return f"sao_step_{name}"


def _gauge(name: str, text: str, value: float) -> Family:
    return Family(name=name, kind="gauge", help=text, samples=[({}, value)])
