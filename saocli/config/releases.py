"""What is kept on disk of the release chain."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ReleasesConfig:
    """Checkpoint cadence and retention."""

    checkpoint_every: int = 1  # full trainer state every N steps (and at shutdown)
    keep_last: int = 2  # newest checkpoints and weight folders that are kept, the current one's among them
