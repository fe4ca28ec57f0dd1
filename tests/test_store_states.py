"""When the trainer's state is saved."""

from __future__ import annotations

from pathlib import Path

import pytest

from saocli.config.releases import ReleasesConfig
from saocli.store.chain import ReleaseChain
from saocli.store.database import Database
from saocli.store.releases import Releases
from saocli.store.run import RunDirectory


class Saver:
    def __init__(self) -> None:
        self.saved: list[Path] = []

    async def save(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self.saved.append(folder)


@pytest.mark.parametrize(("every", "due", "at_end"), [(1, [1, 2, 3, 4], 1), (3, [3], 1), (1000, [], 1), (0, [], 0)])
async def test_a_state_is_saved_every_n_steps_and_at_the_end_or_never(
    every: int, due: list[int], at_end: int, tmp_path: Path
) -> None:
    run = RunDirectory.create(tmp_path, "smoke")
    database = Database(run.records_db)
    config = ReleasesConfig(checkpoint_every=every)
    chain = ReleaseChain(run, Releases(database), scenario="s", arm="sao", config=config)
    chain.begin("digest")
    assert [step for step in range(1, 5) if chain.draft(step).state is not None] == due
    saver = Saver()
    await chain.checkpoint_head(saver)
    assert len(saver.saved) == at_end
    assert (chain.head().checkpoint is not None) is bool(at_end)
    database.close()
