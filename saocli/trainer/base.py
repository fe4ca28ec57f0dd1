"""What the conductor needs of a trainer, and nothing of how one works."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from saocli.types import Batch, StepOutput


class Trainer(Protocol):
    """Holds actor, critic and their optimizers; every call either completes or raises TrainerError."""

    async def step(self, batch: Batch) -> StepOutput:
        """Train on exactly these rollouts (critic, then actor)."""
        ...

    async def export(self, folder: Path) -> str:
        """Write the actor as a Hugging Face folder; returns the sha256 digest over its tensors."""
        ...

    async def digest(self) -> str:
        """What `export` would return now, without writing anything."""
        ...

    async def save(self, folder: Path) -> None:
        """Write actor, critic, both optimizers, schedules and RNG; complete only once its marker file is there."""
        ...

    async def load(self, folder: Path) -> None:
        """Restore what `save` wrote, bit for bit."""
        ...

    async def close(self) -> None:
        """End every rank."""
        ...
