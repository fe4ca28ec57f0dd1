"""Identifiers and seeds."""

from __future__ import annotations

import hashlib
import re
import secrets
import time
from collections.abc import Iterator

from saocli.config.gateway import SCENARIO_NAME

CROCKFORD = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"

RECORD_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")
NAME = re.compile(SCENARIO_NAME)
TAG_VALUE = re.compile(r"[ -~]{0,256}")

ID_RULE = "1 to 128 of A-Z a-z 0-9 . _ : -, starting with a letter or digit"
NAME_RULE = "1 to 64 of A-Z a-z 0-9 . _ -, starting with a letter or digit"


def new_ulid() -> str:
    """26 characters that sort by time: 48 bits of milliseconds, 80 random bits (the ULID specification)."""
    number = int(time.time() * 1000) << 80 | secrets.randbits(80)
    return "".join(CROCKFORD[number >> shift & 31] for shift in range(125, -1, -5))


def derived_seeds(seed: int, *, start: int) -> Iterator[int]:
    """A run's sampling seeds in order of its requests, 31 bits each: the same run draws the same ones again."""
    number = start
    while True:
        digest = hashlib.sha256(f"{seed}:{number}".encode()).digest()
        yield int.from_bytes(digest[:4], "big") >> 1
        number += 1
