"""The release chain on disk: drafts, commits, and what is kept.

    releases/000003/weights   Hugging Face folder of the actor
    releases/000003/state     trainer state (actor, critic, optimizers), when a checkpoint was due

A step whose actor did not move (critic-only, no-op) keeps its parent's version: its rollouts are on-policy.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from saocli.config.releases import ReleasesConfig
from saocli.store.releases import Releases
from saocli.store.run import RunDirectory
from saocli.types import Operation, Release


@dataclass(frozen=True, kw_only=True, slots=True)
class Draft:
    """A release that is not visible yet, and where its files go."""

    step: int
    version: str
    weights: Path
    state: Path | None


class Saves(Protocol):
    """Writes its whole state to a folder."""

    async def save(self, folder: Path) -> None: ...


class ReleaseChain:
    """Writes the chain of one scenario."""

    def __init__(
        self, run: RunDirectory, releases: Releases, *, scenario: str, arm: str, config: ReleasesConfig
    ) -> None:
        self._run = run
        self._releases = releases
        self._scenario = scenario
        self._arm = arm
        self._config = config

    def begin(self, digest: str) -> Release:
        """Commit the base release of a fresh run, whose weights `draft(0)` placed."""
        base = Release(
            release_id=self._id(0),
            scenario=self._scenario,
            step=0,
            operation=Operation.BASE,
            current=True,
            parent_release_id=None,
            weight_version=self._id(0),
            arm=self._arm,
            created_at=time.time(),
            receipts=(),
            metrics={},
            checkpoint=None,
            digest=digest,
        )
        self._releases.commit(base, report_ids=())
        return base

    def head(self) -> Release:
        head = self._releases.head(self._scenario)
        assert head is not None, "begin() commits the base release first"
        return head

    def next_step(self) -> int:
        return self.head().step + 1

    def draft(self, step: int) -> Draft:
        folder = self._folder(step)
        due = step % self._config.checkpoint_every == 0
        return Draft(
            step=step, version=self._id(step), weights=folder / "weights", state=folder / "state" if due else None
        )

    async def commit(
        self,
        draft: Draft,
        *,
        operation: Operation,
        receipts: Sequence[str],
        report_ids: Sequence[str],
        digest: str | None,
        metrics: Mapping[str, float | None],
    ) -> Release:
        """Make the draft current and its reports trained in one transaction; `digest` None means unchanged weights."""
        parent = self.head()
        release = Release(
            release_id=self._id(draft.step),
            scenario=self._scenario,
            step=draft.step,
            operation=operation,
            current=True,
            parent_release_id=parent.release_id,
            weight_version=parent.weight_version if digest is None else draft.version,
            arm=self._arm,
            created_at=time.time(),
            receipts=tuple(receipts),
            metrics=metrics,
            checkpoint=None if draft.state is None else str(draft.state.relative_to(self._run.path)),
            digest=parent.digest if digest is None else digest,
        )
        await asyncio.to_thread(self._write, release, report_ids)
        return release

    async def checkpoint_head(self, trainer: Saves) -> None:
        """Save the trainer's state for the head unless it has one, so that a run can go on from where it stopped."""
        head = self.head()
        if head.checkpoint is None:
            state = self._folder(head.step) / "state"
            await trainer.save(state)
            self._releases.set_checkpoint(head.release_id, str(state.relative_to(self._run.path)))
            await asyncio.to_thread(self._prune)

    def _write(self, release: Release, report_ids: Sequence[str]) -> None:
        self._releases.commit(release, report_ids=report_ids)
        self._prune()

    def _id(self, step: int) -> str:
        return f"{self._scenario}@{step}"

    def _folder(self, step: int) -> Path:
        return self._run.releases / f"{step:06d}"

    def _prune(self) -> None:
        """Keep the newest `keep_last` states and weight folders; the serving weights are the newest."""
        for kind in ("weights", "state"):
            for folder in sorted(self._run.releases.glob(f"*/{kind}"))[: -self._config.keep_last]:
                if kind == "state":
                    self._releases.set_checkpoint(self._id(int(folder.parent.name)), None)
                shutil.rmtree(folder)
        for folder in self._run.releases.iterdir():
            if not any(folder.iterdir()):
                folder.rmdir()


def weights_folder(run: RunDirectory, release: Release) -> Path | None:
    """Where the weights that `release` serves lie; None when retention has removed them."""
    step = int(release.weight_version.rsplit("@", 1)[1])
    folder = run.releases / f"{step:06d}" / "weights"
    return folder if folder.is_dir() else None
