"""The conductor's loop through what interrupts it: a trainer that dies, and a rollback."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from saocli.errors import EngineError, ProcessDied, Refused, RunError, SaoError, TrainerError
from saocli.loop import Parts, conduct
from saocli.queue import SampleQueue
from saocli.store.chain import ROLLED_BACK_TO, ReleaseChain
from saocli.types import Operation, Release
from saocli.wire.restore import Restored, Restorer
from saocli.wire.seat import Seat


@dataclass(frozen=True, slots=True)
class Request:
    """Someone waits for a rollback to `target`."""

    target: Release
    done: asyncio.Future[Release]


class Recovery:
    """Conducts; between two steps it restores a trainer that died, and rolls back when asked to.

    Nothing is ever cut short: a step that is being committed is, and the next batch is held back. A batch whose step
    was not committed stays leased on disk, and is the first that the restored trainer gets.
    """

    def __init__(
        self,
        *,
        parts: Callable[[], Parts],
        seat: Seat,
        restorer: Restorer,
        chain: ReleaseChain,
        queue: SampleQueue,
        restarts: int,
        say: Callable[[str], None],
        status: Callable[[str], None],
        restored: Callable[[Restored], None],
        rolled_back: Callable[[Release], None],
    ) -> None:
        """`restarts`: how often in a row, without a commit between. `restored` and `rolled_back` are told of each."""
        self.doing: str | None = None  # what keeps it from training
        self._parts = parts
        self._seat = seat
        self._restorer = restorer
        self._chain = chain
        self._queue = queue
        self._restarts = restarts
        self._say = say
        self._status = status
        self._restored = restored
        self._rolled_back = rolled_back
        self._request: Request | None = None
        self._over = False

    async def conduct(self, last_step: int | None) -> None:
        """`loop.conduct`. Raises ProcessDied once the trainer died more than `restarts` times in a row."""
        deaths = 0
        died: RunError
        try:
            while True:
                head = self._chain.head().step
                try:
                    if self._seat.dead:
                        await self._restart()
                    await self._conduct(last_step)
                    if not self._seat.dead:
                        if self._request is None:
                            return
                        await self._roll_back(self._request)
                        continue
                    died = self._seat.child.died("waiting for a batch")
                # The engine's publisher reports a trainer that died while it sent its weights.
                except (ProcessDied, EngineError) as error:
                    if not self._seat.dead:
                        raise
                    died = error
                deaths = 1 if self._chain.head().step > head else deaths + 1
                if deaths > self._restarts:
                    raise died
                cause = died.message.splitlines()[0]
                self._say(f"{cause}: starting it again ({deaths} of {self._restarts} in a row)")
        finally:
            self._over = True
            if self._request is not None and not self._request.done.done():
                self._request.done.set_exception(Refused("the run is ending", fix="go on with it: sao serve --resume"))

    async def rollback(self, release_id: str) -> Release:
        """Make the weights and the trainer's state of an earlier release the head again; returns the new head.

        Honoured between two steps. Raises Refused, with nothing changed.
        """
        target, head = self._chain.get(release_id), self._chain.head()
        if target is None:
            newest = " · ".join(release.release_id for release in self._chain.releases()[-5:])
            raise Refused(f"no release {release_id!r}", fix=f"the newest are: {newest}")
        if target.release_id == head.release_id:
            raise Refused(f"{release_id} is the head already", fix="`sao releases` lists the earlier ones")
        if self._over:
            raise _busy("the run is ending")
        if self._request is not None:
            raise _busy(f"a rollback to {self._request.target.release_id} is under way")
        request = self._request = Request(target, asyncio.get_running_loop().create_future())
        self._queue.pause()
        # Whoever asked may give up; the rollback is made all the same.
        return await asyncio.shield(request.done)

    def roll_back_before(self, step: int) -> None:
        """Between two steps, go back to the newest state on disk from before `step`, or to the base."""
        if self._over or self._request is not None:
            return
        way = [release for release in self._chain.training_of(self._chain.head()) if release.step < step]
        target = next((release for release in reversed(way) if self._chain.state(release)), self._chain.base())
        assert target is not None, "a run that trains has a base"
        self._request = Request(target, asyncio.get_running_loop().create_future())
        self._queue.pause()

    async def _conduct(self, last_step: int | None) -> None:
        """Conduct until there is nothing more to train, or something to do between two steps."""
        if self._request is None:
            self._queue.go_on()
        watch = asyncio.create_task(self._pause_at_death())
        try:
            await conduct(self._parts(), last_step=last_step)
        finally:
            watch.cancel()

    async def _pause_at_death(self) -> None:
        """A trainer that dies while nothing is trained is noticed too."""
        await self._seat.child.wait()
        self._queue.pause()

    async def _restart(self) -> None:
        self.doing = "restoring the trainer"
        try:
            self._status("starting the trainer again")
            await self._seat.fill()
            self._restored(await self._to(self._chain.head(), fresh=True))
        finally:
            self.doing = None

    async def _to(self, release: Release, *, fresh: bool) -> Restored:
        restored = await self._restorer.restore(
            release, fresh=fresh, progress=lambda text: self._status(f"trainer: {text}")
        )
        self._say(f"trainer at {release.release_id}: {restored.line}")
        return restored

    async def _roll_back(self, request: Request) -> None:
        self.doing = f"rolling back to {request.target.release_id}"
        try:
            release = await self._republish(request.target)
        except SaoError as error:
            gone = self._seat.dead
            failed = TrainerError(f"the rollback failed: {error.message}") if gone else error
            request.done.set_exception(failed)
            request.done.exception()  # there may be nobody left to retrieve it
            if gone:
                raise
            self._restored(await self._to(self._chain.head(), fresh=False))
        else:
            request.done.set_result(release)
            self._rolled_back(release)
        finally:
            self._request = None
            self.doing = None

    async def _republish(self, target: Release) -> Release:
        """The order of a commit: state on disk, then the engine, then the chain."""
        restored = await self._to(target, fresh=False)
        if not restored.equal:
            raise Refused(f"{target.release_id} cannot be rebuilt bit for bit", fix="name another release")
        parts, step = self._parts(), self._chain.next_step()
        draft = self._chain.draft(step, with_state=True)
        assert draft.state is not None
        try:
            digest = await parts.trainer.export(draft.weights)
            await parts.trainer.save(draft.state)
            await parts.engine.load(draft.weights, draft.version)
            return await self._chain.commit(
                draft,
                operation=Operation.ROLLBACK,
                receipts=(),
                report_ids=(),
                digest=digest,
                metrics={ROLLED_BACK_TO: float(target.step)},
            )
        except SaoError:
            self._chain.clean()
            raise


def _busy(doing: str) -> Refused:
    return Refused(f"{doing}: no other rollback can begin", fix="try again later")
