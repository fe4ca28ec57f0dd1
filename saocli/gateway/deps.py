"""What the gateway's handlers work with; whoever starts the service fills it in."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from saocli.engine.base import Engine
from saocli.errors import Refused
from saocli.gateway.admission import Admission
from saocli.gateway.ids import derived_seeds, new_ulid
from saocli.store.records import Records
from saocli.store.releases import Releases
from saocli.types import Message, Release

T = TypeVar("T")


class Decoder(Protocol):
    """Token ids to text, one at a time."""

    def push(self, token: int) -> str:
        """The text that is certain after this token; '' while a character is incomplete. Special tokens are skipped."""
        ...

    def flush(self) -> str:
        """What is left at the end."""
        ...


class ChatCodec(Protocol):
    """The model's tokenizer and chat template."""

    @property
    def vocab_size(self) -> int:
        """Ids are below it."""
        ...

    def render(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """Chat messages as prompt ids, ready for the assistant's turn. Raises CodecError."""
        ...

    def encode(self, text: str) -> tuple[int, ...]:
        """Raw text as ids, special tokens added as the model expects."""
        ...

    def decoder(self) -> Decoder:
        """A fresh decoder for one response."""
        ...

    def token_text(self, token: int) -> str:
        """One token on its own, special tokens included."""
        ...


class CodecError(ValueError):
    """Messages that the chat template refuses; the text says why."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HealthState:
    """Whether the service can answer; `reason` says why not."""

    ok: bool
    reason: str | None = None


class Changes:
    """Wakes those who wait for a record to change; they wait in one event loop, `notify` may come from any thread."""

    def __init__(self) -> None:
        self._next = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    def notify(self) -> None:
        """Something changed."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._wake)

    def upcoming(self) -> asyncio.Event:
        """Is set at the next change: take it before looking, so that no change falls between."""
        self._loop = asyncio.get_running_loop()
        return self._next

    def _wake(self) -> None:
        self._next.set()
        self._next = asyncio.Event()


async def cannot_roll_back(release_id: str) -> Release:
    """The `rollback` of a service that trains nothing."""
    raise Refused("nothing is trained here, so there is nothing to roll back")


@dataclass(kw_only=True)
class GatewayDeps:
    """Parts, limits and hooks of one service."""

    engine: Engine
    codec: ChatCodec
    records: Records
    releases: Releases
    scenario: str  # the one this deployment trains, and the default of requests
    model: str  # as /v1/models answers
    context_length: int  # prompt + response tokens
    token: str = field(repr=False)
    health: Callable[[], HealthState]
    status: Callable[[], Mapping[str, Any]]  # what /reef/status adds
    on_report_accepted: Callable[[], None]  # a report waits for training
    rollback: Callable[[str], Awaitable[Release]] = cannot_roll_back  # to a release by its id; raises Refused
    changes: Changes = field(default_factory=Changes)
    seed: int = 0  # requests without a seed get one derived from it
    trains: bool = True  # False: reports are kept, and none is trained
    batch_size: int = 1
    group_size: int = 1  # rollouts of one prompt that must share a batch
    max_staleness: int = 0
    create_scenarios: bool = True
    max_body_bytes: int = 8 * 2**20
    max_generations: int = 1024
    max_outstanding: int = 0  # 0: no limit
    receipt_ttl_s: float = 600.0
    clock: Callable[[], float] = time.time
    new_id: Callable[[], str] = new_ulid
    seeds: Iterator[int] = field(init=False)
    admission: Admission = field(init=False)
    answered: Counter[tuple[str, str, int]] = field(default_factory=Counter)  # (method, route, status) → requests
    # Writes wait for the disk and for each other; in threads of their own, they keep no read waiting.
    writers: Executor = field(default_factory=lambda: ThreadPoolExecutor(4))
    known_scenarios: set[str] = field(default_factory=set)  # seen in the store, which never forgets one

    def trains_on(self, scenario: str) -> bool:
        """Whether reports in this scenario can train."""
        return self.trains and scenario == self.scenario

    async def writing(self, function: Callable[..., T], *args: Any) -> T:
        """Call what writes to the store; raises what it raises."""
        return await asyncio.get_running_loop().run_in_executor(self.writers, function, *args)

    def __post_init__(self) -> None:
        # Counting on from the recorded generations, a resumed run does not repeat the seeds it has used.
        self.seeds = derived_seeds(self.seed, start=self.records.generations())
        self.admission = Admission(
            self.records,
            scenario=self.scenario,
            max_generations=self.max_generations,
            max_outstanding=self.max_outstanding,
            receipt_ttl_s=self.receipt_ttl_s,
            clock=self.clock,
        )
