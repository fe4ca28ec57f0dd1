"""POST /reef/report: a score against recorded generations, durable before it is answered."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fastapi import Request
from fastapi.responses import JSONResponse
from starlette.responses import Response

from saocli.gateway.body import all_finite, finite_number, read_object, shown
from saocli.gateway.context import SCENARIO_HEADER
from saocli.gateway.deps import GatewayDeps
from saocli.gateway.errors import ApiError, invalid, unknown_scenario
from saocli.gateway.ids import ID_RULE, NAME, NAME_RULE, RECORD_ID
from saocli.processors.judge import Reason, Rejection, judge
from saocli.store.entries import Accepted, Conflict
from saocli.types import Report

FIELDS = ("score", "references", "feedback", "metadata", "agent_record_id", "scenario")
MAX_REFERENCES = 256


@dataclass(frozen=True, kw_only=True, slots=True)
class Posted:
    """The body of a report, checked."""

    score: float
    references: tuple[str, ...]
    feedback: Any
    metadata: Mapping[str, Any]
    report_id: str | None
    scenario: str | None


async def report(deps: GatewayDeps, request: Request) -> Response:
    """Check, judge, store; the same answer for each retry. Training happens elsewhere and is not waited for."""
    posted = parse_report(await read_object(request, deps.max_body_bytes))
    header = request.headers.get(SCENARIO_HEADER)
    if header is not None and not NAME.fullmatch(header):
        raise invalid(SCENARIO_HEADER, f"must be {NAME_RULE}")
    if header is not None and posted.scenario not in (None, header):
        raise invalid("scenario", f"is {posted.scenario}, but the {SCENARIO_HEADER} header says {header}")
    accepted = await deps.writing(_accept, deps, posted, header or posted.scenario)
    deps.admission.reported(posted.references, trains=accepted.trains)
    deps.changes.notify()
    if accepted.trains:
        deps.on_report_accepted()
    return JSONResponse(
        {
            "agent_record_id": accepted.report_id,
            "scenario": accepted.scenario,
            "request_type": "report",
            "trains": accepted.trains,
            "reason": accepted.reason,
        }
    )


def parse_report(body: Mapping[str, Any]) -> Posted:
    """400 that names the field for anything that is not as the contract says."""
    for name in body:
        if name not in FIELDS:
            raise invalid(name, f"is not a field of a report; there are {', '.join(FIELDS)}", code="unknown_field")
    if "score" not in body:
        raise invalid("score", "is missing: it must be a finite number")
    score = finite_number(body["score"])
    if score is None:
        raise invalid("score", f"must be a finite number, got {shown(body['score'])}")
    return Posted(
        score=score + 0.0,  # no negative zero
        references=_references(body.get("references")),
        feedback=_feedback(body.get("feedback")),
        metadata=_metadata(body.get("metadata")),
        report_id=_named(body, "agent_record_id", RECORD_ID, ID_RULE),
        scenario=_named(body, "scenario", NAME, NAME_RULE),
    )


def fingerprint(posted: Posted, scenario: str) -> str:
    """sha256 over what makes a retry the same report; key order and 1 against 1.0 do not matter."""
    content = [scenario, posted.score, posted.references, posted.feedback, posted.metadata]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _accept(deps: GatewayDeps, posted: Posted, named: str | None) -> Accepted:
    """Without a named scenario, a report belongs to that of the first generation it grades."""
    exchanges = []
    for receipt in posted.references:
        exchange = deps.records.get_exchange(receipt)
        if exchange is None:
            raise ApiError(404, f"references: no receipt {receipt!r}", code="receipt_not_found", param="references")
        exchanges.append(exchange)
    scenario = named or (exchanges[0].scenario if exchanges else deps.scenario)
    known = deps.records.scenarios()
    if scenario not in known:
        raise unknown_scenario(scenario, known)
    made = Report(
        id=posted.report_id or deps.new_id(),
        scenario=scenario,
        score=posted.score,
        references=posted.references,
        created_at=deps.clock(),
        feedback=posted.feedback,
        metadata=posted.metadata,
    )
    judged = judge(made, exchanges, trained_scenario=deps.scenario)
    untrained = None if deps.trains else Reason.UNTRAINED_ARM
    reason, group = (judged.reason, None) if isinstance(judged, Rejection) else (untrained, judged.group)
    accepted = deps.records.accept_report(
        made, fingerprint=fingerprint(posted, scenario), trains=reason is None, reason=reason, group=group
    )
    if isinstance(accepted, Conflict):
        message = f"agent_record_id {made.id!r} is taken by a record with other content"
        raise ApiError(409, message, code="conflict", param="agent_record_id")
    return accepted


def _references(value: Any) -> tuple[str, ...]:
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(item, str) and RECORD_ID.fullmatch(item) for item in value):
        raise invalid("references", f"must be a list of receipts, each {ID_RULE}")
    if len(set(value)) != len(value):
        raise invalid("references", "names a receipt twice")
    if len(value) > MAX_REFERENCES:
        raise invalid("references", f"has {len(value)} receipts, at most {MAX_REFERENCES} are possible")
    return tuple(value)


def _feedback(value: Any) -> Any:
    if value is not None and not isinstance(value, str | dict):
        raise invalid("feedback", f"must be a string or an object, got {shown(value)}")
    if not all_finite(value):
        raise invalid("feedback", "has a number that is not finite")
    return value


def _metadata(value: Any) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise invalid("metadata", f"must be an object, got {shown(value)}")
    if not all_finite(value):
        raise invalid("metadata", "has a number that is not finite")
    training = value.get("training", {})
    if not isinstance(training, dict):
        raise invalid("metadata.training", f"must be an object, got {shown(training)}")
    if not isinstance(training.get("eligible", True), bool):
        raise invalid("metadata.training.eligible", f"must be true or false, got {shown(training['eligible'])}")
    return value


def _named(body: Mapping[str, Any], name: str, pattern: re.Pattern[str], rule: str) -> str | None:
    value = body.get(name)
    if value is not None and not (isinstance(value, str) and pattern.fullmatch(value)):
        raise invalid(name, f"must be {rule}")
    return value
