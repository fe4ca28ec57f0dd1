"""Refusals in the OpenAI API's form: {"error": {message, type, code, param}}."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from saocli.errors import ContextLengthExceeded, EngineRestarting, RunError, StoreError

CLIENT_CLOSED = 499  # nobody reads it; counted
RETRY = {"Retry-After": "1"}


class ApiError(Exception):
    """The request is refused; becomes the answer."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.param = param
        self.headers = headers

    def body(self) -> dict[str, Any]:
        """The answer's JSON."""
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        return {"error": {"message": self.message, "type": kind, "code": self.code, "param": self.param}}

    def response(self) -> JSONResponse:
        """The answer."""
        return JSONResponse(self.body(), self.status, headers=self.headers)


def invalid(param: str, message: str, *, code: str = "invalid_value") -> ApiError:
    """400 about one field; the message starts with its name."""
    return ApiError(400, f"{param} {message}", code=code, param=param)


def unavailable(message: str, code: str) -> ApiError:
    """503: try again."""
    return ApiError(503, message, code=code, headers=RETRY)


def busy(message: str, code: str) -> ApiError:
    """429: there is no room now; try again."""
    return ApiError(429, message, code=code, headers=RETRY)


def context_exceeded(tokens: int, limit: int, param: str) -> ApiError:
    """400: the prompt leaves no room for an answer."""
    message = f"{param} has {tokens} tokens, which leaves no room for an answer in the context of {limit} tokens"
    return ApiError(400, message, code="context_length_exceeded", param=param)


def unknown_scenario(name: str, known: list[str]) -> ApiError:
    """404 that lists what there is."""
    message = f"no scenario {name!r}; there are: {', '.join(known)}"
    return ApiError(404, message, code="scenario_not_found", param="scenario")


def from_run_error(error: RunError) -> ApiError:
    """A failure of a part behind the gateway, as the client sees it: never a 500."""
    if isinstance(error, ContextLengthExceeded):
        return ApiError(400, error.message, code="context_length_exceeded", param="messages")
    part = "store" if isinstance(error, StoreError) else "engine"
    code = "engine_restarting" if isinstance(error, EngineRestarting) else f"{part}_unavailable"
    cause = error.message.splitlines()[0]  # what follows it is the end of a log, and none of the client's business
    return unavailable(f"the {part} cannot serve this now: {cause}", code)


def install(app: FastAPI) -> None:
    """Make every refusal of `app` come out in this form."""

    async def api_error(_: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, ApiError)
        return error.response()

    async def run_error(_: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RunError)
        return from_run_error(error).response()

    async def http_error(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        message = f"{error.detail}: {request.method} {request.url.path}"
        return ApiError(error.status_code, message, code="not_found", headers=error.headers).response()

    async def fault(_: Request, error: Exception) -> JSONResponse:
        # It is raised again once this is sent, and logged.
        return ApiError(500, "this is a fault of sao; its log says more", code="internal_error").response()

    async def left(_: Request, error: Exception) -> Response:
        return Response(status_code=CLIENT_CLOSED)

    app.add_exception_handler(ApiError, api_error)
    app.add_exception_handler(Exception, fault)
    app.add_exception_handler(ClientDisconnect, left)
    app.add_exception_handler(RunError, run_error)
    app.add_exception_handler(HTTPException, http_error)
