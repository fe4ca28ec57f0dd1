"""The trainer as it was at a release: the newest state on the way there, then the recorded batches since.

A step is a function of the trainer's state and of its batch alone, so the steps that no state holds are made again from
the reports on disk, and come out bit for bit as they did (on the same machine and software).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from saocli.config.trainer import DType
from saocli.errors import MachineError, TrainerError
from saocli.models.digest import folder_digest
from saocli.store.chain import ReleaseChain
from saocli.trainer.base import Trainer
from saocli.types import Batch, Release, StepOutput


@dataclass(frozen=True, kw_only=True, slots=True)
class Restored:
    """What was done to restore the trainer, and how it came out."""

    release: Release
    origin: str  # what was loaded
    outputs: Mapping[int, StepOutput]  # of the steps that were made again
    digest: str  # of the trainer's weights now

    @property
    def equal(self) -> bool:
        """The trainer holds the weights that the release recorded."""
        return self.digest == self.release.digest

    @property
    def line(self) -> str:
        """One line for people."""
        count = len(self.outputs)
        replayed = f"replayed {count} step{'s' * (count != 1)} from {self.origin}" if count else self.origin
        equal = "digest equal" if self.equal else f"digest DIFFERS from the one recorded for {self.release.release_id}"
        return f"{replayed}, {equal}"

    def metrics(self) -> dict[str, float | None]:
        """For the next step's record."""
        return {"replay/steps": float(len(self.outputs)), "replay/digest_equal": float(self.equal)}


class Restorer:
    """Brings the trainer to where it was at a release."""

    def __init__(
        self,
        chain: ReleaseChain,
        *,
        batch: Callable[[int], Batch],
        trainer: Callable[[], Trainer],
        renew: Callable[[], Awaitable[None]],
        say: Callable[[str], None],
    ) -> None:
        """`batch` gives what a committed step trained, and `trainer` the trainer there is now.

        `renew` puts one in its place that holds the base model; `say` gets a line for each state that cannot be used.
        """
        self._chain = chain
        self._batch = batch
        self._trainer = trainer
        self._renew = renew
        self._say = say

    async def restore(
        self, release: Release, *, fresh: bool, progress: Callable[[str], None], wanted: int | None = None
    ) -> Restored:
        """Load the newest state on the way to `release`, and make the steps since then again.

        `fresh`: the trainer holds the base model, and nothing was done with it yet. `wanted`: the output of this step
        is asked for, so an older state is taken, if there is one, from which it is made again.

        Raises ProcessDied when the trainer ends meanwhile, TrainerError when it cannot do a step again.
        """
        way = await asyncio.to_thread(self._chain.training_of, release)
        origin, left = await self._load_newest(way, fresh, wanted)
        again = [one.step for one in left if one.operation.takes_batch]
        outputs = {}
        for number, step in enumerate(again, start=1):
            progress(f"replaying step {step} ({number} of {len(again)})")
            outputs[step] = await self._trainer().step(await asyncio.to_thread(self._batch, step))
        progress("comparing weights")
        return Restored(release=release, origin=origin, outputs=outputs, digest=await self._trainer().digest())

    async def _load_newest(
        self, way: Sequence[Release], fresh: bool, wanted: int | None
    ) -> tuple[str, Sequence[Release]]:
        """Load the newest state that can be loaded, or have the base model; returns its name and the commits since."""
        newest_first = list(enumerate(way))[::-1]
        if wanted is not None:
            newest_first.sort(key=lambda one: one[1].step >= wanted)
        for place, release in newest_first:
            state = self._chain.state(release)
            if state is None:
                continue
            try:
                await self._trainer().load(state)
            except TrainerError as error:
                self._say(f"{error.message}: going on from what is older")
                fresh = False  # a part of it may have been loaded
            else:
                return f"the state of {release.release_id}", way[place + 1 :]
        if not fresh:
            await self._renew()
        return "the base model", way


def proved_weights(chain: ReleaseChain, release: Release, dtype: DType) -> Path | None:
    """The folder of the weights that `release` serves; None unless it holds them byte for byte."""
    folder = chain.weights(release)
    if folder is None:
        return None
    try:
        return folder if folder_digest(folder, dtype) == release.digest else None
    # What a truncated or overwritten safetensors file raises, see `stored.read_header`.
    except (OSError, ValueError, KeyError, TypeError, AttributeError, MachineError):
        return None
