"""A crowd of clients against the gateway while a 10 s step runs: nothing lost, nothing doubled, and how long it takes.

Run: python tests/bench/bench_load.py [clients] [attempts of each] [mean pause in s]
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from loadkit import Crowd, check, cpu_s, gateway, play, resident_mib


def main(clients: int, cycles: int, pause_s: float) -> None:
    crowd = Crowd(clients=clients, cycles=cycles, pause_s=pause_s)
    with tempfile.TemporaryDirectory() as name:
        with gateway(Path(name), step_s=10.0) as (url, pid):
            before, cpu, start = resident_mib(pid), cpu_s(pid), time.perf_counter()
            told = asyncio.run(play(url, crowd))
            seconds, after, cpu = time.perf_counter() - start, resident_mib(pid), cpu_s(pid) - cpu
        check(told, Path(name), crowd)
    requests = sum(told.statuses.values())
    print(f"{clients} clients · {requests} requests in {seconds:.0f} s, {requests / seconds:.0f}/s · 0 lost, 0 doubled")
    for kind, taken in told.seconds.items():
        print(f"{kind:<8} p50 {statistics.median(taken) * 1000:7.1f} ms   p99 {told.p99(kind) * 1000:7.1f} ms")
    print(f"gateway: {cpu / requests * 1000:.1f} ms of CPU a request, {before:.0f} → {after:.0f} MiB")


if __name__ == "__main__":
    given = sys.argv[1:]
    main(int(given[0]) if given else 1000, int(given[1]) if given[1:] else 3, float(given[2]) if given[2:] else 4.0)
