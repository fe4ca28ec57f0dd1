"""What the service keeps in memory of what it records: its resident memory over 100,000 records.

Run: python tests/bench/bench_memory.py [records]
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from loadkit import attempts, in_process, resident_mib

TENTHS = 10


async def main(records: int) -> None:
    """Half of them are receipts, half are the reports on them."""
    with tempfile.TemporaryDirectory() as name:
        async with in_process(Path(name)) as (http, stored):
            await attempts(http, 500)
            start = time.perf_counter()
            print(f"{0:>8,} records  {resident_mib(os.getpid()):7.1f} MiB")
            for tenth in range(1, TENTHS + 1):
                await attempts(http, records // 2 // TENTHS)
                seconds = time.perf_counter() - start
                done = records * tenth // TENTHS
                print(f"{done:>8,} records  {resident_mib(os.getpid()):7.1f} MiB  {seconds:6.0f} s", flush=True)
            assert stored.counts().queued == 500 + records // 2 // TENTHS * TENTHS


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if sys.argv[1:] else 100_000))
