"""The JSON that the service answers with, as schemas: what a client may rely on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from saocli.processors.reasons import Reason
from saocli.store.entries import State
from saocli.types import FinishReason, Operation

Json = dict[str, Any]


def _object(required: Mapping[str, Any], optional: Mapping[str, Any] | None = None, **rules: Any) -> Json:
    return {"type": "object", "required": list(required), "properties": {**required, **(optional or {})}, **rules}


def _closed(required: Mapping[str, Any]) -> Json:
    return _object(required, additionalProperties=False)


def _array(items: Json) -> Json:
    return {"type": "array", "items": items}


def ref(name: str) -> Json:
    return {"$ref": f"#/components/schemas/{name}"}


def _or_null(schema: Json) -> Json:
    return {"anyOf": [schema, {"type": "null"}]}


TEXT, NUMBER, BOOL, OBJECT = ({"type": kind} for kind in ("string", "number", "boolean", "object"))
COUNT: Json = {"type": "integer", "minimum": 0}
METRICS: Json = {"type": "object", "additionalProperties": {"type": ["number", "null"]}}
STANDING: Mapping[str, Any] = {
    "state": {"enum": [state.value for state in State]},
    "reason": _or_null({"enum": [reason.value for reason in Reason]}),
    "release_id": _or_null(TEXT),
    "step": _or_null(COUNT),
}
USAGE = _closed({"prompt_tokens": COUNT, "completion_tokens": COUNT, "total_tokens": COUNT})
FINISH: Json = {"enum": ["stop", "length"]}
HEAD: Json = _or_null(_closed({"release_id": TEXT, "step": COUNT, "weight_version": TEXT}))


def _completion(kind: str, choice: Mapping[str, Any]) -> Json:
    choices = _array(_closed({"index": COUNT, "finish_reason": FINISH, "logprobs": _or_null(OBJECT), **choice}))
    return _closed(
        {"id": TEXT, "object": {"const": kind}, "created": COUNT, "model": TEXT, "choices": choices, "usage": USAGE}
    )


ANSWERS: Mapping[str, Json] = {
    "Error": _closed(
        {
            "error": _closed(
                {
                    "message": {"type": "string", "minLength": 1},
                    "type": {"enum": ["invalid_request_error", "server_error"]},
                    "code": TEXT,
                    "param": _or_null(TEXT),
                }
            )
        }
    ),
    "Healthy": _closed({"ok": {"const": True}}),
    "Unhealthy": _closed({"ok": {"const": False}, "reason": TEXT}),
    "ChatCompletion": _completion(
        "chat.completion", {"message": _closed({"role": {"const": "assistant"}, "content": TEXT})}
    ),
    "TextCompletion": _completion("text_completion", {"text": TEXT}),
    "Models": _closed(
        {
            "object": {"const": "list"},
            "data": _array(
                _closed(
                    {
                        "id": TEXT,
                        "object": {"const": "model"},
                        "created": COUNT,
                        "owned_by": TEXT,
                        "max_model_len": COUNT,
                        "release": HEAD,
                    }
                )
            ),
        }
    ),
    "Accepted": _closed(
        {
            "agent_record_id": TEXT,
            "scenario": TEXT,
            "request_type": {"const": "report"},
            "trains": BOOL,
            "reason": STANDING["reason"],
        }
    ),
    "Scenario": _closed({"scenario": TEXT, "trains": BOOL}),
    "Scenarios": _closed({"scenarios": _array(ref("Scenario"))}),
    "Contract": _object({"scenario": TEXT, "trains": BOOL, "report": OBJECT, "trainable_when": OBJECT}),
    "Release": _closed(
        {
            **{name: TEXT for name in ("release_id", "scenario", "weight_version", "arm", "digest")},
            "step": COUNT,
            "operation": {"enum": [operation.value for operation in Operation]},
            "current": BOOL,
            "parent_release_id": _or_null(TEXT),
            "created_at": NUMBER,
            "receipts": _array(TEXT),
            "metrics": METRICS,
            "checkpoint": _or_null(TEXT),
        }
    ),
    "Releases": _closed({"scenario": TEXT, "releases": _array(ref("Release"))}),
    "Receipt": _object(
        {
            "agent_record_id": TEXT,
            "request_type": {"const": "inference"},
            "scenario": TEXT,
            "created_at": NUMBER,
            "session": _or_null(TEXT),
            "tags": {"type": "object", "additionalProperties": TEXT},
            "prompt_tokens": COUNT,
            "completion_tokens": COUNT,
            "weight_versions": _array(TEXT),
            "sampling": OBJECT,
            "finish_reason": {"enum": [reason.value for reason in FinishReason]},
            "text": TEXT,
            "trainable": BOOL,
            "why_not": STANDING["reason"],
            **STANDING,
        },
        {
            "prompt_ids": _array(COUNT),
            "output_ids": _array(COUNT),
            "logprobs": _array({"type": ["number", "null"]}),
            "spans": _array(_closed({"version": TEXT, "start": COUNT, "end": COUNT})),
        },
        additionalProperties=False,
    ),
    "StoredReport": _closed(
        {
            "agent_record_id": TEXT,
            "request_type": {"const": "report"},
            "scenario": TEXT,
            "created_at": NUMBER,
            "score": NUMBER,
            "references": _array(TEXT),
            "feedback": {"type": ["string", "object", "null"]},
            "metadata": OBJECT,
            "trains": BOOL,
            **STANDING,
        }
    ),
    "Records": _closed(
        {
            "scenario": TEXT,
            "records": _array({"oneOf": [ref("Receipt"), ref("StoredReport")]}),
            "next": _or_null(COUNT),
        }
    ),
    "Status": _object(
        {
            "scenario": TEXT,
            "model": TEXT,
            "health": _closed({"ok": BOOL, "reason": _or_null(TEXT)}),
            "serving": HEAD,
            "queue": {"type": "object", "additionalProperties": COUNT},
            "drops": {"type": "object", "additionalProperties": COUNT},
        }
    ),
    "Document": _object({"openapi": TEXT, "info": OBJECT, "paths": OBJECT, "components": OBJECT}),
}
