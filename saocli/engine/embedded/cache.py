"""KV storage of the running requests: one row each, every row with its own length."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache

_FIRST_CAPACITY = 128


class SlotCache(Cache):
    """A transformers `Cache` whose rows are independent requests.

    Storage is `[layers, 2, slots, kv_heads, capacity, head_dim]`; capacity doubles on demand up to the context length.
    The running requests occupy rows [0, n), so attention reads views, never copies: `move` closes the hole that a
    finished request leaves. Unwritten places hold zeros, never garbage: a masked weight of 0 times NaN is NaN.
    """

    def __init__(self, *, slots: int, limit: int) -> None:
        super().__init__(layers=[])
        self._slots = slots
        self._limit = limit
        self._store: Tensor | None = None
        self._layers = 0
        self._capacity = 0
        self._prefill_row: int | None = None
        self._rows = torch.arange(0)
        self._positions = torch.arange(0)
        self._start = 0
        self._length = 0

    def begin_prefill(self, row: int, start: int, length: int) -> None:
        """The next forward fills places [start, length) of `row`; what lies before is there."""
        self._reserve(length)
        self._prefill_row = row
        self._start, self._length = start, length

    def begin_decode(self, positions: Tensor) -> int:
        """The next forward adds a token to each of rows [0, n) at `positions` [n]; returns the longest length then."""
        self._length = int(positions.max()) + 1
        self._reserve(self._length)
        self._prefill_row = None
        self._rows = torch.arange(len(positions))
        self._positions = positions
        return self._length

    def move(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` tokens of row `source` over row `target`."""
        if self._store is not None:
            self._store[:, :, target, :, :length] = self._store[:, :, source, :, :length]

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Called by each attention layer with new K and V [n, kv_heads, new, head_dim]; returns all to attend to."""
        if self._store is None or layer_idx >= self._layers:
            self._add_layer(key_states)
        assert self._store is not None
        keys, values = self._store[layer_idx, 0], self._store[layer_idx, 1]
        if self._prefill_row is not None:
            row, new = slice(self._prefill_row, self._prefill_row + 1), slice(self._start, self._length)
            keys[row, :, new] = key_states
            values[row, :, new] = value_states
            return keys[row, :, : self._length], values[row, :, : self._length]
        keys[self._rows, :, self._positions] = key_states[:, :, 0]
        values[self._rows, :, self._positions] = value_states[:, :, 0]
        n = len(self._rows)
        return keys[:n, :, : self._length], values[:n, :, : self._length]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Not meaningful for ragged rows; positions and masks are always passed explicitly."""
        return 0

    def _add_layer(self, like: Tensor) -> None:
        # Layers announce themselves in order during the first prefill, before any row is read back.
        heads, width = like.shape[1], like.shape[3]
        layer = torch.zeros(1, 2, self._slots, heads, self._capacity, width, dtype=like.dtype)
        self._store = layer if self._store is None else torch.cat([self._store, layer])
        self._layers = len(self._store)

    def _reserve(self, length: int) -> None:
        if length <= self._capacity:
            return
        self._capacity = min(self._limit, max(2 * self._capacity, length, _FIRST_CAPACITY))
        if self._store is not None:
            old = self._store
            self._store = old.new_zeros(*old.shape[:4], self._capacity, old.shape[5])
            self._store[..., : old.shape[4], :] = old
