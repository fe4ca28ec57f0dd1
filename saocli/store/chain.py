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
from saocli.stored import MARKER
from saocli.types import Operation, Release

ROLLED_BACK_TO = "rollback/to_step"  # in the metrics of a rollback: the step whose weights it serves again


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

    def base(self) -> Release | None:
        """The first release; None in a run that has none yet."""
        return self._releases.get(self._id(0))

    def get(self, release_id: str) -> Release | None:
        """One release of this chain by its id, or None."""
        found = self._releases.get(release_id)
        return found if found is not None and found.scenario == self._scenario else None

    def releases(self) -> list[Release]:
        """All of them, oldest first."""
        return self._releases.list(self._scenario)[::-1]

    def head(self) -> Release:
        head = self._releases.head(self._scenario)
        assert head is not None, "begin() commits the base release first"
        return head

    def next_step(self) -> int:
        return self.head().step + 1

    def draft(self, step: int, *, with_state: bool = False) -> Draft:
        folder = self._folder(step)
        every = self._config.checkpoint_every
        due = with_state or (every > 0 and step % every == 0)
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

    def training_of(self, release: Release) -> list[Release]:
        """The commits whose training led to `release`, in order: from the base on, abandoned branches left out."""
        chain = {one.step: one for one in self.releases()}
        led: list[Release] = []
        while release.operation is not Operation.BASE:
            led.append(release)
            release = chain[_step_before(release)]
        return led[::-1]

    def state(self, release: Release) -> Path | None:
        """The trainer's state as it was at `release`, complete; None when there is none on disk."""
        if release.checkpoint is None:
            return None
        folder = self._run.path / release.checkpoint
        return folder if (folder / MARKER).is_file() else None

    def home_of_weights(self, release: Release) -> Path:
        """Where the weights that `release` serves belong."""
        return _home_of_weights(self._run, release)

    def weights(self, release: Release) -> Path | None:
        """The weights that `release` serves, complete; None when they are no longer on disk."""
        folder = self.home_of_weights(release)
        return folder if (folder / MARKER).is_file() else None

    def clean(self) -> None:
        """Take away what a killed process left behind: drafts of steps that no release has, and half-written folders.

        A release whose state is gone is no longer marked as having one.
        """
        chain = {release.step: release for release in self.releases()}
        for folder in _numbered(self._run.releases):
            release = chain.get(int(folder.name))
            named = ["weights", release.checkpoint and Path(release.checkpoint).name] if release else []
            for found in list(folder.iterdir()):
                if found.name not in named or not (found / MARKER).is_file():
                    shutil.rmtree(found)
        for release in chain.values():
            if release.checkpoint is not None and self.state(release) is None:
                self._releases.set_checkpoint(release.release_id, None)
        self._drop_empty()

    async def checkpoint_head(self, trainer: Saves) -> None:
        """Save the trainer's state for the head unless it has one, so that a run can go on from where it stopped.

        Nothing where states are never saved.
        """
        head = self.head()
        if head.checkpoint is None and self._config.checkpoint_every > 0:
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
        """Keep the newest `keep_last` states and weight folders, and those of every `keep_every`-th step.

        The serving weights are the newest.
        """
        every = self._config.keep_every
        for kind in ("weights", "state"):
            there = [folder / kind for folder in _numbered(self._run.releases) if (folder / kind).is_dir()]
            for folder in there[: -self._config.keep_last]:
                step = int(folder.parent.name)
                if every and step % every == 0:
                    continue
                if kind == "state":
                    self._releases.set_checkpoint(self._id(step), None)
                shutil.rmtree(folder)
        self._drop_empty()

    def _drop_empty(self) -> None:
        for folder in _numbered(self._run.releases):
            if not any(folder.iterdir()):
                folder.rmdir()


def _step_before(release: Release) -> int:
    """The step that `release` was made from: of a rollback, the one that it goes back to."""
    back = release.metrics.get(ROLLED_BACK_TO) if release.operation is Operation.ROLLBACK else None
    return release.step - 1 if back is None else int(back)


def _numbered(folder: Path) -> list[Path]:
    """The folders that are named by a step, in order of steps."""
    return sorted((one for one in folder.iterdir() if one.name.isdigit()), key=lambda one: int(one.name))


def weights_folder(run: RunDirectory, release: Release) -> Path | None:
    """Where the weights that `release` serves lie; None when retention has removed them."""
    folder = _home_of_weights(run, release)
    return folder if folder.is_dir() else None


def _home_of_weights(run: RunDirectory, release: Release) -> Path:
    """A version is named by the step that made it."""
    step = int(release.weight_version.rsplit("@", 1)[1])
    return run.releases / f"{step:06d}" / "weights"
