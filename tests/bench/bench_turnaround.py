"""From an accepted report to a token of the weights it made, against the step itself.

Run: python tests/bench/bench_turnaround.py [conf] [rounds] [override …]

`added` is what the service puts on top of training, export and weight copy (the step's own time): queueing, the store,
the release, and the request for the token. Runs alone on a quiet machine, or the numbers mean nothing.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

import httpx

sys.path.insert(0, str(Path(__file__).parents[1]))

from runkit import served


def main(conf: str, rounds: int, overrides: list[str]) -> None:
    settings = ["trainer.critic_warmup_steps=0", "releases.checkpoint_every=1000", *overrides]
    with tempfile.TemporaryDirectory() as folder, served(Path(folder), f"conf={conf}", *settings) as running:
        http = httpx.Client(base_url=running.url, headers={"authorization": "Bearer reef-local"}, timeout=600)

        def answer(tokens: int) -> httpx.Response:
            chat = {"messages": [{"role": "user", "content": "What is 2 + 1?"}], "model": "x", "max_tokens": tokens}
            return http.post("/v1/chat/completions", json=chat)

        records_path = f"/reef/scenarios/{http.get('/reef/status').json()['scenario']}/records"
        waited = []
        for score in [float(i % 2) for i in range(rounds)]:
            receipt = answer(16).headers["x-reef-agent-record-id"]
            http.post("/reef/report", json={"score": score, "references": [receipt]})
            accepted = time.perf_counter()
            page = {"state": "queued"}
            while page["state"] != "trained":
                page = http.get(records_path, params={"receipt": receipt, "wait": 30}).json()["records"][0]
            version = answer(1).headers["x-reef-weight-version"]
            waited.append((time.perf_counter() - accepted, version))
        records = [json.loads(line) for line in (running.run / "metrics.jsonl").read_text().splitlines()]
    moved = [(t, r) for (t, _), r in zip(waited, records, strict=True) if r["sao/actor_trained"]]
    print(f"{conf}: {len(moved)} steps that moved the actor, median of each in ms")
    for name in ("critic", "actor", "export", "publish", "step"):
        print(f"  {name:<8} {1e3 * statistics.median(r[f'time/{name}_s'] for _, r in moved):9.1f}")
    print(f"  {'waited':<8} {1e3 * statistics.median(t for t, _ in moved):9.1f}   report → a token of the new weights")
    print(f"  {'added':<8} {1e3 * statistics.median(t - r['time/step_s'] for t, r in moved):9.1f}")


if __name__ == "__main__":
    main(
        sys.argv[1] if len(sys.argv) > 1 else "cpu_smoke",
        int(sys.argv[2]) if len(sys.argv) > 2 else 20,
        sys.argv[3:],
    )
