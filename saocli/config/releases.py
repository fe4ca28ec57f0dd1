"""What is kept on disk of the release chain."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ReleasesConfig:
    """Checkpoint cadence and retention."""

    checkpoint_every: int = 1  # full trainer state every N steps and at the end; 0: never, resuming replays all steps
    keep_last: int = 2  # newest checkpoints and weight folders that are kept, the current one's among them
    keep_every: int = 0  # and for good those of every N-th step; 0: of none
