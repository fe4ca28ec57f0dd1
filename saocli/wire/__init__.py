"""Composition root: a RunConfig becomes a running stack."""

from saocli.wire.stack import Outcome, run

__all__ = ["Outcome", "run"]
