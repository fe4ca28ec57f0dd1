"""A wall clock that is set back moves no report and makes no age negative."""

from __future__ import annotations

import time
from pathlib import Path

from recoverykit import Run
from storekit import exchange, report

HOUR_S = 3600.0


async def test_order_is_that_of_acceptance_and_ages_are_not_negative(tmp_path: Path) -> None:
    run = Run(tmp_path / "run")
    await run.begin()
    now = time.time()
    # Accepted in this order; the clock goes back twice, and stands at `now` when they are taken.
    accepted = {"first": now + HOUR_S, "second": now - 10.0, "third": now - HOUR_S}
    for name, at in accepted.items():
        run.records.add_exchange(exchange(name, created_at=at - 1.0))
        graded = report(f"p-{name}", name, created_at=at)
        run.records.accept_report(graded, fingerprint="f", trains=True, reason=None)
    ages: list[float] = []
    for step, name in enumerate(accepted, start=1):
        taken = await run.queue.take(step)
        assert taken is not None
        assert taken.report_ids == [f"p-{name}"]
        ages += taken.queue_ages_s
        assert run.records.batch(step)[0].report.id == f"p-{name}"
    assert ages[0] == 0.0
    assert 10.0 <= ages[1] < 70.0
    assert HOUR_S <= ages[2] < HOUR_S + 60.0
    run.close()
