"""Who asks: the scenario, session and tags that a request's headers name."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from fastapi import Request

from saocli.gateway.deps import GatewayDeps
from saocli.gateway.errors import ApiError, invalid, unavailable, unknown_scenario
from saocli.gateway.ids import ID_RULE, NAME, NAME_RULE, RECORD_ID, TAG_VALUE

SCENARIO_HEADER = "x-reef-scenario"
SESSION_HEADER = "x-sao-session"
TAG_PREFIX = "x-reef-tag-"
MAX_TAGS = 16


@dataclass(frozen=True, kw_only=True, slots=True)
class Caller:
    """What is stored with each generation of a request."""

    scenario: str
    session: str | None
    tags: Mapping[str, str]


async def caller_of(deps: GatewayDeps, request: Request) -> Caller:
    """The headers, checked; a scenario that is new is created if the deployment allows it."""
    headers = request.headers
    scenario = headers.get(SCENARIO_HEADER, deps.scenario)
    session = headers.get(SESSION_HEADER)
    if session is not None and not RECORD_ID.fullmatch(session):
        raise invalid(SESSION_HEADER, f"must be {ID_RULE}")
    await ensure_scenario(deps, scenario, create=deps.create_scenarios)
    return Caller(scenario=scenario, session=session, tags=_tags(headers))


async def ensure_scenario(deps: GatewayDeps, name: str, *, create: bool) -> bool:
    """True when it was created; 404 with the known names when it is new and must not be."""
    if not NAME.fullmatch(name):
        raise invalid("scenario", f"must be {NAME_RULE}")
    if name in deps.known_scenarios:
        return False
    known = await asyncio.to_thread(deps.records.scenarios)
    deps.known_scenarios.update(known)
    if name in known:
        return False
    if not create:
        raise unknown_scenario(name, known)
    return await deps.writing(_create, deps, name)


async def known_scenario(deps: GatewayDeps, request: Request) -> str:
    """The scenario in the path; 404 with the known names."""
    name: str = request.path_params["scenario"]
    known = await asyncio.to_thread(deps.records.scenarios)
    if name not in known:
        raise unknown_scenario(name, known)
    return name


def require_health(deps: GatewayDeps) -> None:
    """503 while a part that generations need is not there."""
    health = deps.health()
    if not health.ok:
        raise unavailable(f"the service cannot answer now: {health.reason}", "not_ready")


def _create(deps: GatewayDeps, name: str) -> bool:
    return deps.records.ensure_scenario(name, at=deps.clock())


def _tags(headers: Mapping[str, str]) -> dict[str, str]:
    tags = {name.removeprefix(TAG_PREFIX): value for name, value in headers.items() if name.startswith(TAG_PREFIX)}
    if len(tags) > MAX_TAGS:
        raise ApiError(400, f"at most {MAX_TAGS} {TAG_PREFIX}… headers, got {len(tags)}", code="invalid_value")
    for name, value in tags.items():
        if not NAME.fullmatch(name):
            raise invalid(TAG_PREFIX + name, f"must end in a name of {NAME_RULE}")
        if not TAG_VALUE.fullmatch(value):
            raise invalid(TAG_PREFIX + name, "must be at most 256 printable ASCII characters")
    return tags
