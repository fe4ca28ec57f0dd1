"""POST /reef/scenarios/{scenario}/rollback: an earlier release becomes the head again."""

from __future__ import annotations

import asyncio

from fastapi import Request
from fastapi.responses import JSONResponse
from starlette.responses import Response

from saocli.errors import Refused, RunError
from saocli.gateway.body import read_object, shown
from saocli.gateway.context import known_scenario, require_health
from saocli.gateway.deps import GatewayDeps
from saocli.gateway.errors import ApiError, invalid, unavailable
from saocli.gateway.releases import release_json


async def rollback(deps: GatewayDeps, request: Request) -> Response:
    """{"release_id": id} → the new head, once it serves: between two steps, and after the steps to it were replayed.

    404 for a release that this scenario's chain does not have, 409 with the reason when it cannot be done.
    """
    scenario = await known_scenario(deps, request)
    body = await read_object(request, deps.max_body_bytes)
    release_id = body.get("release_id")
    if not isinstance(release_id, str) or set(body) != {"release_id"}:
        raise invalid("release_id", "must be a string, and the body's only field")
    chain = await asyncio.to_thread(deps.releases.list, scenario)
    if release_id not in (release.release_id for release in chain):
        newest = ", ".join(release.release_id for release in chain[:5]) or "none"
        message = f"no release {shown(release_id)} in scenario {scenario}; the newest are: {newest}"
        raise ApiError(404, message, code="release_not_found", param="release_id")
    require_health(deps)
    try:
        head = await deps.rollback(release_id)
    except Refused as error:
        message = f"{error.message}; {error.fix}" if error.fix else error.message
        raise ApiError(409, message, code="rollback_refused", param="release_id") from error
    except RunError as error:
        raise unavailable(error.message.splitlines()[0], "rollback_failed") from error
    return JSONResponse(release_json(head))
