"""GET /openapi.json: the routes as an OpenAPI 3.1 document."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import Request
from fastapi.responses import JSONResponse
from starlette.responses import Response

from saocli import __version__
from saocli.gateway.answer import RECEIPT_HEADER, VERSION_HEADER
from saocli.gateway.answers import ANSWERS, Json, ref
from saocli.gateway.chat import ROLES
from saocli.gateway.context import MAX_TAGS, SCENARIO_HEADER, SESSION_HEADER, TAG_PREFIX
from saocli.gateway.deps import GatewayDeps
from saocli.gateway.ids import NAME, RECORD_ID
from saocli.gateway.params import MAX_N, MAX_STOPS, MAX_TEMPERATURE, SEED_LIMIT
from saocli.gateway.prometheus import CONTENT_TYPE
from saocli.gateway.records import MAX_PAGE, MAX_WAIT_S
from saocli.gateway.report import MAX_REFERENCES


async def openapi(deps: GatewayDeps, request: Request) -> Response:
    """The document."""
    return JSONResponse(document(deps.codec.vocab_size))


def document(vocab_size: int) -> Json:
    """The whole of it, as data, for a model whose token ids are below `vocab_size`."""
    return {
        "openapi": "3.1.0",
        "info": {"title": "sao", "version": __version__, "description": "Train on one graded rollout at a time."},
        "security": [{"bearer": []}],
        "paths": _paths(),
        "components": {
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
            "schemas": {**REQUESTS, **ANSWERS, "Token": {"type": "integer", "minimum": 0, "maximum": vocab_size - 1}},
        },
    }


def _optional(kind: str, **rules: Any) -> Json:
    return {"type": [kind, "null"], **rules}


def _text(pattern: str) -> Json:
    return {"type": "string", "pattern": f"^{pattern}$"}


ID, SCENARIO = _text(RECORD_ID.pattern), _text(NAME.pattern)
INT64 = 2**63 - 1

SHARED: Mapping[str, Any] = {
    "model": {"description": "Any: one model is served."},
    "max_tokens": _optional("integer", minimum=1, maximum=SEED_LIMIT),
    "temperature": _optional("number", minimum=0, maximum=MAX_TEMPERATURE),
    "top_p": _optional("number", exclusiveMinimum=0, maximum=1),
    "top_k": {"anyOf": [{"const": -1}, {"type": "integer", "minimum": 1, "maximum": 2**31 - 1}, {"type": "null"}]},
    "min_p": _optional("number", minimum=0, maximum=1),
    "frequency_penalty": _optional("number", minimum=-2, maximum=2),
    "presence_penalty": _optional("number", minimum=-2, maximum=2),
    "stop": {
        "anyOf": [
            {"type": "string", "minLength": 1},
            {"type": "array", "items": {"type": "string", "minLength": 1}, "maxItems": MAX_STOPS},
            {"type": "null"},
        ]
    },
    "n": _optional("integer", minimum=1, maximum=MAX_N),
    "seed": _optional("integer", minimum=-SEED_LIMIT, maximum=SEED_LIMIT - MAX_N),
    "stream": _optional("boolean"),
    "stream_options": _optional("object", properties={"include_usage": _optional("boolean")}),
    "user": {"description": "Any: it is not used."},
}

REQUESTS: Mapping[str, Json] = {
    "Message": {
        "type": "object",
        "required": ["role", "content"],
        "properties": {
            "role": {"enum": list(ROLES)},
            "content": {
                "anyOf": [
                    {"type": "string"},
                    {
                        "type": "array",
                        "items": {
                            "type": "object",
                            "required": ["type", "text"],
                            "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
                        },
                    },
                ]
            },
            "name": {"description": "Any: it is not used."},
        },
        "additionalProperties": {"type": "null"},
    },
    "ChatRequest": {
        "type": "object",
        "required": ["messages"],
        "properties": {
            **SHARED,
            "messages": {"type": "array", "items": ref("Message"), "minItems": 1},
            "max_completion_tokens": _optional("integer", minimum=1, maximum=SEED_LIMIT),
            "logprobs": _optional("boolean"),
            "top_logprobs": _optional("integer", minimum=0, maximum=20),
        },
        "additionalProperties": {"type": "null"},
    },
    "CompletionRequest": {
        "type": "object",
        "required": ["prompt"],
        "properties": {
            **SHARED,
            "prompt": {
                "anyOf": [
                    {"type": "string", "minLength": 1},
                    {"type": "array", "items": ref("Token"), "minItems": 1},
                ]
            },
            "logprobs": _optional("integer", minimum=0, maximum=20),
        },
        "additionalProperties": {"type": "null"},
    },
    "Report": {
        "type": "object",
        "required": ["score"],
        "properties": {
            "score": {"type": "number"},
            "references": _optional("array", items=ID, maxItems=MAX_REFERENCES, uniqueItems=True),
            "feedback": {"type": ["string", "object", "null"]},
            "metadata": _optional(
                "object",
                properties={"training": {"type": "object", "properties": {"eligible": {"type": "boolean"}}}},
            ),
            "agent_record_id": {"anyOf": [ID, {"type": "null"}]},
            "scenario": {"anyOf": [SCENARIO, {"type": "null"}]},
        },
        "additionalProperties": False,
    },
    "Rollback": {
        "type": "object",
        "required": ["release_id"],
        "properties": {"release_id": {"type": "string"}},
        "additionalProperties": False,
    },
    "NewScenario": {
        "type": "object",
        "required": ["scenario"],
        "properties": {"scenario": SCENARIO},
        "additionalProperties": False,
    },
}


def _answer(schema: str, description: str, **more: Any) -> Json:
    return {"description": description, "content": {"application/json": {"schema": ref(schema)}}, **more}


def _refusals(*statuses: int) -> Json:
    """The named ones and those that any route may give."""
    said = {
        400: "A field, header or parameter is not as it must be: `param` names it.",
        401: "The bearer token is missing or wrong.",
        403: "This deployment forbids it.",
        404: "There is no such scenario, receipt or release.",
        408: "The request did not arrive in time.",
        409: "The id is taken by a record with other content, or what is asked for cannot be done now.",
        413: "The body is too large.",
        414: "The target is too long.",
        429: "There is no room now: Retry-After says when to try again.",
        431: "The headers are too large.",
        503: "A part of the service is missing: Retry-After says when to try again.",
    }
    retry = {"Retry-After": {"schema": {"type": "string", "pattern": "^[0-9]+$"}}}
    return {
        str(status): _answer("Error", said[status], **({"headers": retry} if status in (429, 503) else {}))
        for status in sorted({*statuses, 400, 401, 408, 414, 431, 503})
    }


def _header(name: str, schema: Json, description: str) -> Json:
    return {"name": name, "in": "header", "schema": schema, "description": description}


def _query(name: str, schema: Json, description: str) -> Json:
    return {"name": name, "in": "query", "schema": schema, "description": description}


def _body(schema: str) -> Json:
    return {"required": True, "content": {"application/json": {"schema": ref(schema)}}}


def _generation(summary: str, request: str, whole: str) -> Json:
    headers = {
        VERSION_HEADER: {"required": True, "schema": {"type": "string"}},
        RECEIPT_HEADER: {"schema": {"type": "string"}, "description": "In a stream, the last chunk has it."},
    }
    answered = _answer(whole, "The answer; with stream: true, server-sent events.", headers=headers)
    events = {"type": "object", "required": ["data"], "properties": {"data": {"type": "string"}}}
    answered["content"]["text/event-stream"] = {"schema": events}
    return {
        "summary": summary,
        "parameters": [
            _header(SCENARIO_HEADER, SCENARIO, "The scenario; default: the one that is trained."),
            _header(SESSION_HEADER, ID, "Ties the calls of one attempt together."),
            _header(f"{TAG_PREFIX}task", _text("[ -~]{0,256}"), f"Stored; at most {MAX_TAGS} such headers, any names."),
        ],
        "requestBody": _body(request),
        "responses": {"200": answered, **_refusals(404, 413, 429)},
    }


def _get(summary: str, answer: Json, *statuses: int, parameters: tuple[Json, ...] = ()) -> Json:
    route: Json = {"summary": summary, "responses": {"200": answer, **_refusals(*statuses)}}
    return route | ({"parameters": list(parameters)} if parameters else {})


def _post(summary: str, request: str, answers: Json, *statuses: int, parameters: tuple[Json, ...] = ()) -> Json:
    route: Json = {"summary": summary, "requestBody": _body(request), "responses": answers | _refusals(413, *statuses)}
    return route | ({"parameters": list(parameters)} if parameters else {})


def _paths() -> Json:
    named = {"name": "scenario", "in": "path", "required": True, "schema": SCENARIO}
    health = _get("Whether the service can answer", _answer("Healthy", "It can.")) | {"security": []}
    health["responses"]["503"] = health["responses"]["503"] | {
        "content": {"application/json": {"schema": {"anyOf": [ref("Unhealthy"), ref("Error")]}}}
    }
    text = {"description": "The text.", "content": {CONTENT_TYPE.partition(";")[0]: {"schema": {"type": "string"}}}}
    scenario = "/reef/scenarios/{scenario}"
    pages = (
        _query("after", {"type": "integer", "minimum": 0, "maximum": INT64}, "Records past this sequence number."),
        _query("limit", {"type": "integer", "minimum": 1, "maximum": MAX_PAGE}, "At most so many."),
        _query("receipt", ID, "This one alone, with its tokens."),
        _query("wait", {"type": "number", "minimum": 0, "maximum": MAX_WAIT_S}, "Seconds until its state is final."),
    )
    return {
        "/healthz": {"get": health},
        "/v1/chat/completions": {"post": _generation("OpenAI chat", "ChatRequest", "ChatCompletion")},
        "/v1/completions": {"post": _generation("OpenAI text completion", "CompletionRequest", "TextCompletion")},
        "/v1/models": {"get": _get("The served model", _answer("Models", "One model."))},
        "/reef/report": {
            "post": _post(
                "A score against recorded generations",
                "Report",
                {"200": _answer("Accepted", "It is stored, durably.")},
                *(404, 409),
                parameters=(_header(SCENARIO_HEADER, SCENARIO, "As the body's `scenario`."),),
            )
        },
        "/reef/scenarios": {
            "get": _get("The known scenarios", _answer("Scenarios", "In order of creation.")),
            "post": _post(
                "Create a scenario",
                "NewScenario",
                {"200": _answer("Scenario", "It was there."), "201": _answer("Scenario", "It is new.")},
                403,
            ),
        },
        f"{scenario}/contract": {
            "parameters": [named],
            "get": _get("What the scenario accepts", _answer("Contract", "The contract."), 404),
        },
        f"{scenario}/releases": {
            "parameters": [named],
            "get": _get("The version chain", _answer("Releases", "Newest first."), 404),
        },
        f"{scenario}/rollback": {
            "parameters": [named],
            "post": _post(
                "Make an earlier release the head again",
                "Rollback",
                {"200": _answer("Release", "The new head, which serves.")},
                *(404, 409),
            ),
        },
        f"{scenario}/records": {
            "parameters": [named],
            "get": _get("Receipts and reports", _answer("Records", "A page."), 404, parameters=pages),
        },
        "/reef/status": {"get": _get("What the run does", _answer("Status", "Now."))},
        "/metrics": {"get": _get("Prometheus text", text)},
        "/openapi.json": {"get": _get("This document", _answer("Document", "OpenAPI 3.1."))},
    }
