"""One request on its way through the engine: what was asked, what was sampled, why it ended."""

from __future__ import annotations

import math
import random
from collections.abc import Collection
from concurrent.futures import Future
from typing import Any

import torch
from torch import Tensor

from saocli.engine.embedded.sampling import penalised
from saocli.engine.embedded.stops import StopStrings
from saocli.types import Sampling


class Sequence:
    """Written by the model's thread alone; other threads read `answer` and wait for `done`."""

    def __init__(
        self,
        *,
        rid: str,
        prompt_ids: list[int],
        sampling: Sampling,
        end_ids: Collection[int],
        stops: StopStrings | None = None,
        return_logprob: bool = True,
    ) -> None:
        """`end_ids`: tokens that end the response (and stay in it)."""
        self.rid = rid
        self.prompt_ids = prompt_ids
        self.sampling = sampling
        self.output_ids: list[int] = []
        self.finish_reason: dict[str, Any] | None = None
        self.random = random.Random(sampling.seed)
        self.done: Future[None] = Future()
        self.done.set_running_or_notify_cancel()  # a waiter that is cancelled must not cancel the future itself
        self._end_ids = frozenset(end_ids)
        self._stops = stops
        self._return_logprob = return_logprob
        self._logprobs: list[float | None] = []
        self._versions: list[tuple[str, int]] = []  # (version, index of its first token)
        self._counts: Tensor | None = None

    @property
    def length(self) -> int:
        """Prompt plus response tokens."""
        return len(self.prompt_ids) + len(self.output_ids)

    @property
    def cached(self) -> list[int]:
        """The tokens whose keys and values are due in the cache: all but the newest, which the next step feeds."""
        return self.prompt_ids + self.output_ids[:-1]

    def penalise(self, logits: Tensor) -> Tensor:
        """Apply this request's penalties to its row of logits [V], in place."""
        sampling = self.sampling
        if sampling.frequency_penalty or sampling.presence_penalty:
            if self._counts is None:
                self._counts = torch.zeros(len(logits))
            logits.copy_(penalised(logits, self._counts, sampling))
        return logits

    def push(self, token: int, logprob: float, version: str) -> None:
        """Take the sampled token; nothing may be pushed once `finish_reason` is set."""
        if math.isnan(logprob):
            self.finish({"type": "abort", "message": "the model gave logits that are not numbers"})
            return
        if not self._versions or self._versions[-1][0] != version:
            self._versions.append((version, len(self.output_ids)))
        self._logprobs.append(logprob if math.isfinite(logprob) else None)
        self.output_ids.append(token)
        if self._counts is not None:
            self._counts[token] += 1
        matched = self._stops.push(token) if self._stops else None
        if token in self._end_ids:
            self.finish({"type": "stop", "matched": token})
        elif matched is not None:
            self.finish({"type": "stop", "matched": matched})
        elif len(self.output_ids) >= self.sampling.max_new_tokens:
            self.finish({"type": "length", "length": len(self.output_ids)})

    def finish(self, reason: dict[str, Any]) -> None:
        """End the request and wake whoever waits for it."""
        self.finish_reason = reason
        self.done.set_result(None)

    def answer(self, serving: str) -> dict[str, Any]:
        """The cumulative answer in SGLang's form; `serving` is the version that serves now. Safe from any thread."""
        # The id is appended last, so that this many log-probs and versions are there for sure.
        finish_reason = self.finish_reason
        total = len(self.output_ids)
        ids = self.output_ids[:total]
        starts = [entry for entry in self._versions if entry[1] < total]
        ends = [start for _, start in starts[1:]] + [total]
        meta: dict[str, Any] = {
            "id": self.rid,
            "finish_reason": finish_reason,
            "prompt_tokens": len(self.prompt_ids),
            "completion_tokens": total,
            "cached_tokens": 0,
            "weight_version": starts[-1][0] if starts else serving,
            "weight_versions": [
                {"version": version, "start": start, "end": end}
                for (version, start), end in zip(starts, ends, strict=False)
            ],
        }
        if self._return_logprob:
            meta["output_token_logprobs"] = [
                (logprob, token, None) for logprob, token in zip(self._logprobs, ids, strict=False)
            ]
        return {"output_ids": ids, "meta_info": meta}
