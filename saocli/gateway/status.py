"""GET /healthz, /v1/models and /reef/status."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from fastapi import Request
from fastapi.responses import JSONResponse
from starlette.responses import Response

from saocli.gateway.body import with_nulls
from saocli.gateway.deps import GatewayDeps
from saocli.gateway.errors import RETRY
from saocli.store.entries import Counts
from saocli.types import Release


async def healthz(deps: GatewayDeps, request: Request) -> Response:
    """200 when it serves, 503 with the reason when not."""
    health = deps.health()
    if health.ok:
        return JSONResponse({"ok": True})
    return JSONResponse({"ok": False, "reason": health.reason}, 503, headers=RETRY)


async def models(deps: GatewayDeps, request: Request) -> Response:
    """The served model, with the current release in a field of its own."""
    head = await asyncio.to_thread(deps.releases.head, deps.scenario)
    model = {
        "id": deps.model,
        "object": "model",
        "created": int(head.created_at) if head else 0,
        "owned_by": "sao",
        "max_model_len": deps.context_length,
        "release": _release(head),
    }
    return JSONResponse({"object": "list", "data": [model]})


async def status(deps: GatewayDeps, request: Request) -> Response:
    """Queue, drops and the serving release, and what the run adds: phase, last metrics, process health."""
    counts, drops, head, added = await asyncio.to_thread(_look, deps)
    health = deps.health()
    body = {
        "scenario": deps.scenario,
        "model": deps.model,
        "health": {"ok": health.ok, "reason": health.reason},
        "serving": _release(head),
        "queue": asdict(counts),
        "drops": drops,
    }
    return JSONResponse(with_nulls(body | dict(added)))


def _look(deps: GatewayDeps) -> tuple[Counts, dict[str, int], Release | None, Mapping[str, Any]]:
    return deps.records.counts(), deps.records.drops(), deps.releases.head(deps.scenario), deps.status()


def _release(head: Release | None) -> dict[str, Any] | None:
    if head is None:
        return None
    return {"release_id": head.release_id, "step": head.step, "weight_version": head.weight_version}
