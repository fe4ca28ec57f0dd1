"""The service against its own description: nothing that the schema can think of makes it fail or answer otherwise."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import schemathesis
from enginefakes import ScriptedEngine, say
from gatewaykit import TOKEN, make_deps
from hypothesis import HealthCheck, assume, given, settings
from schemathesis import GenerationMode
from schemathesis.specs.openapi.checks import ignored_auth

from saocli.gateway.app import ROUTES, make_app
from saocli.gateway.openapi import document
from saocli.store.database import Database

BEARER = {"authorization": f"Bearer {TOKEN}"}
MODES = {"allowed": GenerationMode.POSITIVE, "refused": GenerationMode.NEGATIVE}
DESCRIBED = [
    (path, method)
    for path, item in document(vocab_size=2)["paths"].items()
    for method in item
    if method != "parameters"
]
Operations = Mapping[str, Mapping[str, schemathesis.schemas.APIOperation]]


@pytest.fixture(scope="module")
def operations(tmp_path_factory: pytest.TempPathFactory) -> Operations:
    database = Database(tmp_path_factory.mktemp("schema") / "records.db")
    deps = make_deps(database, ScriptedEngine(lambda _: say("AB")), context_length=1 << 20)
    loaded: Operations = schemathesis.openapi.from_asgi("/openapi.json", make_app(deps), headers=BEARER)
    return loaded


def consistent(headers: Mapping[str, str], body: Mapping[str, Any]) -> bool:
    """What is asked of two fields together, which the schema does not say."""
    return (
        ("x-reef-scenario" not in headers or body.get("scenario") in (None, headers["x-reef-scenario"]))
        and (body.get("stream_options") is None or body.get("stream") is True)
        and (not body.get("top_logprobs") or body.get("logprobs") is True)
    )


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("path", "method"), DESCRIBED, ids=lambda part: part.strip("/"))
def test_every_route_answers_as_described(operations: Operations, path: str, method: str, mode: str) -> None:
    """What the schema allows, and what it does not: no 500, and a status, type, body and headers that it names."""
    if (path, mode) == ("/healthz", "refused"):
        pytest.skip("it takes nothing that could be wrong")

    @settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(case=operations[path][method].as_strategy(MODES[mode]))
    def answers(case: schemathesis.Case) -> None:
        assume(not isinstance(case.body, dict) or consistent(case.headers, case.body))
        case.call_and_validate(headers=BEARER, excluded_checks=[ignored_auth])

    answers()


def test_every_route_is_described() -> None:
    assert {(path, method.lower()) for method, path, _ in ROUTES} == set(DESCRIBED)
