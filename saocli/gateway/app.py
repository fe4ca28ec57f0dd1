"""The HTTP service: which route is answered by which function."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from fastapi import FastAPI, Request
from starlette.responses import Response

from saocli.gateway import errors
from saocli.gateway.auth import OPEN_PATH, BearerAuth
from saocli.gateway.chat import chat_completions
from saocli.gateway.completions import completions
from saocli.gateway.deps import GatewayDeps
from saocli.gateway.heads import ROUTE, Heads
from saocli.gateway.metrics import metrics
from saocli.gateway.openapi import openapi
from saocli.gateway.records import list_records
from saocli.gateway.releases import list_releases
from saocli.gateway.report import report
from saocli.gateway.rollback import rollback
from saocli.gateway.scenarios import contract, create_scenario, list_scenarios
from saocli.gateway.status import healthz, models, status

Handler = Callable[[GatewayDeps, Request], Awaitable[Response]]

ROUTES: tuple[tuple[str, str, Handler], ...] = (
    ("GET", OPEN_PATH, healthz),
    ("POST", "/v1/chat/completions", chat_completions),
    ("POST", "/v1/completions", completions),
    ("GET", "/v1/models", models),
    ("POST", "/reef/report", report),
    ("GET", "/reef/scenarios", list_scenarios),
    ("POST", "/reef/scenarios", create_scenario),
    ("GET", "/reef/scenarios/{scenario}/contract", contract),
    ("GET", "/reef/scenarios/{scenario}/releases", list_releases),
    ("POST", "/reef/scenarios/{scenario}/rollback", rollback),
    ("GET", "/reef/scenarios/{scenario}/records", list_records),
    ("GET", "/reef/status", status),
    ("GET", "/metrics", metrics),
    ("GET", "/openapi.json", openapi),
)


def make_app(deps: GatewayDeps) -> FastAPI:
    """The service over these parts; creates the trained scenario. Raises StoreError."""
    app = FastAPI(title="sao", docs_url=None, redoc_url=None, openapi_url=None)
    deps.records.ensure_scenario(deps.scenario, at=deps.clock())
    for method, path, handler in ROUTES:
        app.add_route(path, _bound(deps, path, handler), methods=[method])
    errors.install(app)
    app.add_middleware(BearerAuth, token=deps.token)
    app.add_middleware(Heads, answered=deps.answered)
    return app


def _bound(deps: GatewayDeps, path: str, handler: Handler) -> Callable[[Request], Awaitable[Response]]:
    async def route(request: Request) -> Response:
        request.scope[ROUTE] = path
        return await handler(deps, request)

    return route
