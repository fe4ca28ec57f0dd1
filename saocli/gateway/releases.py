"""GET /reef/scenarios/{scenario}/releases: the version chain."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import Any

from fastapi import Request
from fastapi.responses import JSONResponse
from starlette.responses import Response

from saocli.gateway.body import with_nulls
from saocli.gateway.context import known_scenario
from saocli.gateway.deps import GatewayDeps
from saocli.types import Release


async def list_releases(deps: GatewayDeps, request: Request) -> Response:
    """Newest first; empty for a scenario that is served but not trained."""
    scenario = await known_scenario(deps, request)
    chain = await asyncio.to_thread(deps.releases.list, scenario)
    return JSONResponse({"scenario": scenario, "releases": [release_json(release) for release in chain]})


def release_json(release: Release) -> dict[str, Any]:
    """One entry of the chain, as JSON."""
    entry: dict[str, Any] = with_nulls(asdict(release))
    return entry
