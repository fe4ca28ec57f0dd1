"""The bearer token, asked for before anything else: no route, body or record is touched without it."""

from __future__ import annotations

import hmac

from starlette.types import ASGIApp, Receive, Scope, Send

from saocli.gateway.errors import ApiError

OPEN_PATH = "/healthz"


class BearerAuth:
    """ASGI middleware; compares in constant time."""

    def __init__(self, app: ASGIApp, *, token: str) -> None:
        self._app = app
        self._token = token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] != OPEN_PATH and not self._allows(scope):
            refusal = ApiError(
                401,
                "a valid token is needed: Authorization: Bearer …",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer", "Connection": "close"},
            )
            await refusal.response()(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _allows(self, scope: Scope) -> bool:
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        if len(given) != 1:
            return False
        scheme, _, token = given[0].partition(b" ")
        return hmac.compare_digest(token.strip(), self._token) and scheme.lower() == b"bearer"
