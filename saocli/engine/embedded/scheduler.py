"""Continuous batching: one thread owns the model, requests join and leave between decode steps.

Why not transformers' own `generate_batch` (tried, 5.24): it draws a whole batch with one global generator, so a
request's tokens depend on its neighbours and cannot be seeded; sampling or argmax is one choice for all; its log-probs
are taken after top_k and top_p; it has no penalties and no stop strings; and it has no place between decode steps where
weights can be swapped, running requests' keys and values recomputed, and each token's version recorded.

Weight swap: between two steps the new weights are copied in, and the cache of every running request is computed anew
from its prompt and what it has generated. So each later token is exactly what a fresh engine on the new weights would
give for that prefix; nothing is aborted, and the answer's `weight_versions` tell which tokens came from which weights.
"""

from __future__ import annotations

import queue
import random
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future

import torch
from torch import Tensor

from saocli.engine.embedded.model import ServedModel
from saocli.engine.embedded.sampling import draw
from saocli.engine.embedded.sequence import Sequence
from saocli.engine.embedded.weights import Checkpoint


class Scheduler:
    """Runs `slots` requests at once, in order of arrival. Public methods may be called from any thread."""

    def __init__(self, model: ServedModel, *, slots: int, seed: int, version: str, threads: int) -> None:
        """`seed` feeds requests that bring none: with their order of arrival it fixes what they draw."""
        self.model = model
        self.version = version
        self._slots = slots
        self._seed = seed
        self._threads = threads
        self._arrivals = 0
        self._orders: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._waiting: deque[Sequence] = deque()
        self._running: list[Sequence] = []  # index = row in the cache
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="decode", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the thread after the step it is in; unfinished requests stay so."""
        self._orders.put(self._on_stop)
        self._thread.join()

    def submit(self, sequence: Sequence) -> None:
        """Queue a request; `sequence.done` tells its end."""
        self._orders.put(lambda: self._on_submit(sequence))

    def abort(self, rid: str | None) -> None:
        """End request `rid` (None: all) with what it has; unknown ones are ignored, as they have just ended."""
        self._orders.put(lambda: self._on_abort(rid))

    def swap(self, checkpoint: Checkpoint, version: str) -> Future[None]:
        """Serve `checkpoint` as `version` from the next step on."""
        done: Future[None] = Future()
        done.set_running_or_notify_cancel()
        self._orders.put(lambda: self._on_swap(checkpoint, version, done))
        return done

    def _run(self) -> None:
        torch.set_num_threads(self._threads)  # a setting of each thread
        with torch.inference_mode():
            while not self._stopped:
                self._take_orders()
                self._admit()
                if self._running:
                    self._step()

    def _take_orders(self) -> None:
        """Carry out what has been asked since the last step; with nothing to decode, wait for it."""
        idle = not self._running and not self._waiting
        while idle or not self._orders.empty():
            self._orders.get()()
            idle = False

    def _on_stop(self) -> None:
        self._stopped = True

    def _on_submit(self, sequence: Sequence) -> None:
        if sequence.sampling.seed is None:
            sequence.random = random.Random(f"{self._seed}/{self._arrivals}")
        self._arrivals += 1
        self._waiting.append(sequence)

    def _on_abort(self, rid: str | None) -> None:
        for sequence in (*self._waiting, *self._running):
            if rid in (None, sequence.rid):
                sequence.finish({"type": "abort", "message": "aborted on request"})
        self._waiting = deque(s for s in self._waiting if s.finish_reason is None)
        self._retire()

    def _on_swap(self, checkpoint: Checkpoint, version: str, done: Future[None]) -> None:
        checkpoint.copy_in()
        self.version = version
        self.model.forget()
        for row, sequence in enumerate(self._running):
            self.model.prefill(row, sequence.cached)
        done.set_result(None)

    def _admit(self) -> None:
        while self._waiting and len(self._running) < self._slots:
            sequence = self._waiting.popleft()
            logits = self.model.prefill(len(self._running), sequence.prompt_ids)
            self._running.append(sequence)
            self._draw([sequence], logits)
            self._retire()

    def _step(self) -> None:
        rows = self._running
        logits = self.model.decode([s.output_ids[-1] for s in rows], [s.length - 1 for s in rows])
        self._draw(rows, logits)
        self._retire()

    def _draw(self, rows: list[Sequence], logits: Tensor) -> None:
        for sequence, row in zip(rows, logits, strict=True):
            sequence.penalise(row)
        uniforms = [s.random.random() for s in rows]
        for sequence, token, logprob in zip(rows, *draw(logits, [s.sampling for s in rows], uniforms), strict=True):
            sequence.push(token, logprob, self.version)

    def _retire(self) -> None:
        """Drop finished requests; the last row fills the hole, so that running rows stay together."""
        for row in range(len(self._running) - 1, -1, -1):
            if self._running[row].finish_reason is not None:
                last = self._running.pop()
                if row < len(self._running):
                    self.model.move(len(self._running), row, last.length - 1)
                    self._running[row] = last
