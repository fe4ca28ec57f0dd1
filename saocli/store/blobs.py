"""Token ids and log-probabilities as compact little-endian columns: int32 and float64."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence

ID_BYTES = 4
LOGPROB_BYTES = 8


def pack_ids(ids: Sequence[int]) -> bytes:
    """`ids` as int32. Raises struct.error for an id that does not fit."""
    return struct.pack(f"<{len(ids)}i", *ids)


def unpack_ids(blob: bytes) -> tuple[int, ...]:
    """The inverse of `pack_ids`."""
    return struct.unpack(f"<{len(blob) // ID_BYTES}i", blob)


def pack_logprobs(logprobs: Sequence[float | None]) -> bytes:
    """`logprobs` as float64; None and −inf become NaN, which no log-probability is."""
    finite = (math.nan if value is None or math.isinf(value) else value for value in logprobs)
    return struct.pack(f"<{len(logprobs)}d", *finite)


def unpack_logprobs(blob: bytes) -> tuple[float | None, ...]:
    """The inverse of `pack_logprobs`; NaN becomes None."""
    values = struct.unpack(f"<{len(blob) // LOGPROB_BYTES}d", blob)
    return tuple(None if math.isnan(value) else value for value in values)
