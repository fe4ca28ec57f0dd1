"""What a request's head may hold, and what was answered to it: the outermost layer of the service."""

from __future__ import annotations

from collections import Counter

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from saocli.gateway.errors import ApiError

MAX_HEADERS = 100
MAX_HEADER_BYTES = 32 * 1024
MAX_TARGET_BYTES = 8 * 1024
ROUTE = "sao.route"  # in the scope: the template of the route that answers
UNKNOWN = "other"


class Heads:
    """ASGI middleware: refuses heads that are too large, and counts each answer by method, route and status.

    The server bounds a head that comes in pieces; one that comes at once reaches us whole.
    """

    def __init__(self, app: ASGIApp, *, answered: Counter[tuple[str, str, int]]) -> None:
        self._app = app
        self._answered = answered

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                route = scope.get(ROUTE, UNKNOWN)
                method = scope["method"] if route != UNKNOWN else ""  # what strangers make up is not kept
                self._answered[method, route, message["status"]] += 1
            await send(message)

        refusal = _refusal(scope)
        if refusal is not None:
            await refusal.response()(scope, receive, counted)
            return
        await self._app(scope, receive, counted)


def _refusal(scope: Scope) -> ApiError | None:
    close = {"Connection": "close"}
    if len(scope["raw_path"]) + len(scope["query_string"]) > MAX_TARGET_BYTES:
        message = f"the request's target is longer than {MAX_TARGET_BYTES} bytes"
        return ApiError(414, message, code="target_too_long", headers=close)
    headers = scope["headers"]
    if len(headers) > MAX_HEADERS or sum(len(name) + len(value) for name, value in headers) > MAX_HEADER_BYTES:
        message = f"the request has more than {MAX_HEADERS} headers, or more than {MAX_HEADER_BYTES} bytes of them"
        return ApiError(431, message, code="headers_too_large", headers=close)
    return None
