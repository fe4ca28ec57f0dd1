"""Through deaths of the trainer and rollbacks: real queue and chain, a trainer whose weights are what it learnt."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from recoverykit import Run

from saocli.errors import EngineError, ProcessDied, Refused
from saocli.store.entries import State
from saocli.types import Operation


def states(run: Run) -> dict[str, State]:
    return {entry.report.references[0]: entry.standing.state for entry in run.records.reports("s")}


@pytest.mark.parametrize("every", [1, 2, 100])
async def test_a_second_session_goes_on_where_the_first_was_killed(tmp_path: Path, every: int) -> None:
    first = Run(tmp_path / "run", every=every)
    await first.begin()
    async with first.conducting():
        first.graded("a", "b", "c")
        await first.reaches(3)
    first.graded("d", "e")
    first.records.lease(4, ["p-d"])  # killed in mid-step
    (tmp_path / "run/releases/000004/weights").mkdir(parents=True)
    first.close()

    run = Run(tmp_path / "run", every=every)
    assert not (tmp_path / "run/releases/000004").exists()
    restored = await run.restore()
    assert run.seat.trainer.learnt == ["a", "b", "c"]
    assert restored.equal
    how = {
        1: "the state of s@3",
        2: "replayed 1 step from the state of s@2",
        100: "replayed 3 steps from the base model",
    }[every]
    assert restored.line == f"{how}, digest equal"
    async with run.conducting():
        await run.reaches(5)
    assert run.seat.trainer.learnt == run.engine.learnt == ["a", "b", "c", "d", "e"]
    assert [release.receipts for release in run.chain.releases()] == [(), ("a",), ("b",), ("c",), ("d",), ("e",)]
    run.close()


async def test_a_damaged_state_is_passed_over(tmp_path: Path) -> None:
    first = Run(tmp_path / "run", every=2)
    await first.begin()
    async with first.conducting():
        first.graded("a", "b", "c", "d", "e")
        await first.reaches(5)
    first.close()
    for step, origin, count in ((4, "the state of s@2", 3), (2, "the base model", 5)):
        (tmp_path / f"run/releases/{step:06d}/state/learnt.json").write_text('["a", "b"')
        run = Run(tmp_path / "run", every=2)
        restored = await run.restore()
        assert (restored.origin, len(restored.outputs), restored.equal) == (origin, count, True)
        assert f"{step:06d} is damaged: going on from what is older" in run.said
        assert run.seat.filled == (2 if step == 2 else 1), "half a state may be in it: the base needs a new one"
        run.close()


async def test_weights_that_come_out_otherwise_are_told(tmp_path: Path) -> None:
    run = Run(tmp_path / "run", every=100)
    await run.begin()
    async with run.conducting():
        run.graded("a")
        await run.reaches(1)
    await run.seat.fill()
    run.seat.trainer.learnt = ["x"]
    restored = await run.restore()
    assert not restored.equal
    assert restored.line.endswith("digest DIFFERS from the one recorded for s@1")
    assert restored.metrics() == {"replay/steps": 1.0, "replay/digest_equal": 0.0}
    run.close()


async def test_a_trainer_that_dies_is_restored_and_gets_its_batch_again(tmp_path: Path) -> None:
    run = Run(tmp_path / "run", every=2, dies_at=[2, 4, 4, 4])
    await run.begin()
    async with run.conducting():
        run.graded("a", "b", "c", "d", "e")
        await run.reaches(5)
    assert run.seat.trainer.learnt == ["a", "b", "c", "d", "e"]
    assert set(states(run).values()) == {State.TRAINED}
    assert run.seat.filled == 5
    assert [restored.release.step for restored in run.restored] == [1, 3, 3, 3]
    assert all(restored.equal for restored in run.restored)
    assert "doing step 4: starting it again (3 of 3 in a row)" in "\n".join(run.said)
    run.close()


async def test_too_many_deaths_in_a_row_end_the_run(tmp_path: Path) -> None:
    run = Run(tmp_path / "run", restarts=2, dies_at=[2, 2, 2])
    await run.begin()
    run.graded("a", "b")
    with pytest.raises(ProcessDied, match="killed while doing step 2"):
        await asyncio.wait_for(run.recovery.conduct(None), 5)
    assert run.seat.filled == 3
    assert states(run) == {"a": State.TRAINED, "b": State.LEASED}
    run.close()


async def test_a_death_while_nothing_is_trained_is_noticed(tmp_path: Path) -> None:
    run = Run(tmp_path / "run")
    await run.begin()
    async with run.conducting():
        run.graded("a")
        await run.reaches(1)
        run.seat.child.end()
        async with asyncio.timeout(5):
            while run.seat.filled < 2 or run.recovery.doing:
                await asyncio.sleep(0.005)
        assert run.seat.trainer.learnt == ["a"]
        run.graded("b")
        await run.reaches(2)
    assert run.seat.trainer.learnt == ["a", "b"]
    run.close()


@pytest.mark.parametrize("every", [1, 2, 100])
async def test_a_rollback_makes_an_earlier_release_the_head(tmp_path: Path, every: int) -> None:
    run = Run(tmp_path / "run", every=every)
    await run.begin()
    async with run.conducting():
        run.graded("a", "b", "c")
        await run.reaches(3)
        head = await run.recovery.rollback("s@1")
        assert (head.release_id, head.operation, head.parent_release_id) == ("s@4", Operation.ROLLBACK, "s@3")
        assert (head.weight_version, head.current) == ("s@4", True)
        assert head.digest == run.chain.releases()[1].digest
        assert (run.engine.learnt, run.engine.version) == (["a"], "s@4")
        # What the abandoned branch sampled does not train any more.
        run.graded("old", version="s@3")
        run.graded("d")
        await run.reaches(5)
    assert run.seat.trainer.learnt == ["a", "d"]
    assert states(run)["old"] is State.DROPPED
    assert run.records.drops() == {"lineage": 1}
    assert run.releases.position("s@5") == (1, 5)
    assert [release.release_id for release in run.shown] == [f"s@{step}" for step in range(1, 6)]
    run.close()
    again = Run(tmp_path / "run", every=every)
    assert (await again.restore()).equal
    assert again.seat.trainer.learnt == ["a", "d"]
    again.close()


async def test_what_came_before_a_rollback_can_be_replayed_without_its_state(tmp_path: Path) -> None:
    run = Run(tmp_path / "run", every=100)
    await run.begin()
    async with run.conducting():
        run.graded("a", "b", "c")
        await run.reaches(3)
        await run.recovery.rollback("s@2")
        run.graded("d")
        await run.reaches(5)
        await run.recovery.rollback("s@3")  # of the branch that was left
        assert run.engine.learnt == ["a", "b", "c"]
    run.close()
    for step in (4, 6):
        (tmp_path / f"run/releases/{step:06d}/state/learnt.json").write_text("[")
    again = Run(tmp_path / "run", every=100)
    restored = await again.restore()
    assert restored.equal
    assert sorted(restored.outputs) == [1, 2, 3]
    again.close()


async def test_a_rollback_that_cannot_be_made_changes_nothing(tmp_path: Path) -> None:
    run = Run(tmp_path / "run", every=2)
    await run.begin()
    async with run.conducting():
        run.graded("a", "b", "c")
        await run.reaches(3)
        with pytest.raises(Refused, match="no release 's@9'"):
            await run.recovery.rollback("s@9")
        with pytest.raises(Refused, match="is the head already"):
            await run.recovery.rollback("s@3")
        run.engine.broken = True
        with pytest.raises(EngineError, match="no room"):
            await run.recovery.rollback("s@1")
        run.engine.broken = False
        assert run.chain.head().release_id == "s@3"
        assert not (tmp_path / "run/releases/000004").exists()
        run.graded("d")
        await run.reaches(4)
    assert run.seat.trainer.learnt == run.engine.learnt == ["a", "b", "c", "d"]
    with pytest.raises(Refused, match="the run is ending"):
        await run.recovery.rollback("s@1")
    run.close()


async def test_a_trainer_that_dies_in_a_rollback_is_restored_to_the_head(tmp_path: Path) -> None:
    run = Run(tmp_path / "run", every=100)
    await run.begin()
    async with run.conducting():
        run.graded("a", "b", "c")
        await run.reaches(3)
        run.seat.dies_at.append(1)
        with pytest.raises(Exception, match="the rollback failed: the trainer was killed while doing step 1"):
            await run.recovery.rollback("s@2")
        run.graded("d")
        await run.reaches(4)
    assert run.seat.trainer.learnt == ["a", "b", "c", "d"]
    assert [release.operation for release in run.chain.releases()[1:]] == [Operation.TRAINING] * 4
    run.close()


async def test_refused_steps_roll_back_to_the_state_before_them(tmp_path: Path) -> None:
    run = Run(tmp_path / "run", every=2)
    await run.begin()
    async with run.conducting():
        run.graded("a", "b", "c", "d", "e")
        await run.reaches(5)
        run.recovery.roll_back_before(4)
        await run.reaches(6)
    head = run.chain.head()
    assert (head.operation, head.metrics) == (Operation.ROLLBACK, {"rollback/to_step": 2.0})
    assert run.engine.learnt == ["a", "b"]
    run.close()


async def test_every_nth_release_is_kept(tmp_path: Path) -> None:
    run = Run(tmp_path / "run", keep_last=1, keep_every=3)
    await run.begin()
    async with run.conducting():
        run.graded(*"abcdefgh")
        await run.reaches(8)
    kept = [release.step for release in run.chain.releases() if run.chain.state(release)]
    assert kept == [3, 6, 8]
    assert [release.step for release in run.chain.releases() if run.chain.weights(release)] == [0, 3, 6, 8]
    run.close()
