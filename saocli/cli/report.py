"""`sao report`: a score against one or more receipts."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import typer


def report(
    receipts: Annotated[list[str], typer.Argument(metavar="RECEIPT…", help="Receipts of the attempt, in call order.")],
    score: Annotated[str, typer.Option(help="A finite number.")],
    feedback: Annotated[str | None, typer.Option(help="Words kept with the report.")] = None,
    report_id: Annotated[str | None, typer.Option("--id", help="Your id, to retry safely.")] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until trained, then print the release.")] = False,
    url: Annotated[str | None, typer.Option(help="The service's address.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> None:
    """Report a score against RECEIPT."""
    from saocli.cli.output import out, print_json
    from saocli.errors import Refused

    value = _finite(score, receipts)
    answer = asyncio.run(_send(receipts, value, feedback, report_id, wait, url))
    if as_json:
        print_json(answer)
    elif "release_id" in answer:
        out.print(f"{receipts[0]}  {answer['state']}  {answer['release_id'] or answer['reason']}")
    else:
        outcome = "queued for training" if answer["trains"] else f"does not train: {answer['reason']}"
        out.print(f"accepted {answer['agent_record_id']}  {outcome}")
    if wait and answer.get("state") != "trained":
        raise Refused(f"the report was accepted but not trained: {answer.get('reason')}")


def _finite(score: str, receipts: list[str]) -> float:
    import math

    from saocli.errors import Refused

    try:
        value = float(score)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise Refused(f"score must be a finite number, got {score} (receipt {receipts[0]} is unchanged)")
    return value


async def _send(
    receipts: list[str], score: float, feedback: str | None, report_id: str | None, wait: bool, url: str | None
) -> dict[str, Any]:
    from saocli.cli.service import find_service
    from saocli.client import Client

    service = find_service(url)
    client = Client(service.url, service.token, scenario=service.trained_scenario())
    given = {"feedback": feedback, "agent_record_id": report_id}
    fields = {key: value for key, value in given.items() if value is not None}
    try:
        answer = await client.report(receipts, score, **fields)
        if wait and answer["trains"]:
            answer |= await client.settled(receipts[0])
        return answer
    finally:
        await client.close()
