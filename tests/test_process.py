"""Child processes: what they load at their start costs nothing afterwards."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import gc, time
from saocli.process import loading
with loading():
    import torch
    assert not gc.isenabled()
assert gc.isenabled()


def full_collection():
    started = time.perf_counter()
    gc.collect()
    return time.perf_counter() - started


without = full_collection()
frozen = gc.get_freeze_count()
gc.unfreeze()
print(frozen, without, full_collection())
"""


def test_the_collector_leaves_out_what_was_loaded() -> None:
    frozen, without, with_them = subprocess.check_output([sys.executable, "-c", PROGRAM], text=True).split()
    assert int(frozen) > 100_000  # torch alone
    assert float(without) < float(with_them) / 5  # 0.1 s with them
