"""GET and POST /reef/scenarios, and what a scenario accepts."""

from __future__ import annotations

import asyncio

from fastapi import Request
from fastapi.responses import JSONResponse
from starlette.responses import Response

from saocli.gateway.body import read_object
from saocli.gateway.context import ensure_scenario, known_scenario
from saocli.gateway.deps import GatewayDeps
from saocli.gateway.errors import ApiError, invalid
from saocli.gateway.report import FIELDS


async def list_scenarios(deps: GatewayDeps, request: Request) -> Response:
    """The known ones in order of creation."""
    known = await asyncio.to_thread(deps.records.scenarios)
    return JSONResponse({"scenarios": [{"scenario": name, "trains": deps.trains_on(name)} for name in known]})


async def create_scenario(deps: GatewayDeps, request: Request) -> Response:
    """{"scenario": name}: 201 when it is new, 200 when it was there."""
    body = await read_object(request, deps.max_body_bytes)
    name = body.get("scenario")
    if not isinstance(name, str) or set(body) != {"scenario"}:
        raise invalid("scenario", "must be a string, and the body's only field")
    if not deps.create_scenarios and name != deps.scenario:
        raise ApiError(403, "gateway.create_scenarios is off in this deployment", code="forbidden", param="scenario")
    created = await ensure_scenario(deps, name, create=True)
    return JSONResponse({"scenario": name, "trains": deps.trains_on(name)}, 201 if created else 200)


async def contract(deps: GatewayDeps, request: Request) -> Response:
    """What the scenario accepts, and what makes a graded generation trainable."""
    name = await known_scenario(deps, request)
    return JSONResponse(
        {
            "scenario": name,
            "trains": deps.trains_on(name),
            "model": deps.model,
            "context_length": deps.context_length,
            "batch_size": deps.batch_size,
            "group_size": deps.group_size,
            "max_staleness": deps.max_staleness,
            "inference": ["/v1/chat/completions", "/v1/completions"],
            "report": {"score": "finite number", "fields": list(FIELDS)},
            "trainable_when": {
                "n": 1,
                "temperature": "above 0",
                "top_p": 1.0,
                "top_k": -1,
                "min_p": 0.0,
                "frequency_penalty": 0.0,
                "presence_penalty": 0.0,
            },
        }
    )
