"""Exchanges and reports with only what a test cares about."""

from __future__ import annotations

from typing import Any

from saocli.types import Exchange, FinishReason, Report, Sampling, Span


def exchange(receipt: str = "r1", **fields: Any) -> Exchange:
    defaults: dict[str, Any] = {
        "receipt": receipt,
        "scenario": "s",
        "session": None,
        "prompt_ids": (1, 2),
        "output_ids": (3, 4, 5),
        "logprobs": (-0.1, -0.2, -0.3),
        "spans": (Span(version="s@0", start=0, end=3),),
        "sampling": Sampling(),
        "finish_reason": FinishReason.STOP,
        "text": "x",
        "created_at": 1.0,
    }
    return Exchange(**(defaults | fields))


def report(report_id: str = "p1", *references: str, **fields: Any) -> Report:
    defaults: dict[str, Any] = {
        "id": report_id,
        "scenario": "s",
        "score": 1.0,
        "references": references,
        "created_at": 2.0,
    }
    return Report(**(defaults | fields))
