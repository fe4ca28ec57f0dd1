"""The product's own command line, its trainer on this device, the embedded engine on the CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from findings import Findings

from saocli.process import tail

SAO = (sys.executable, "-m", "saocli.cli.app", "serve")
QUICK = ("trainer.critic_warmup_steps=2", "engine.threads=2", "trainer.threads=2", "gateway.port=0")
SGLANG = os.environ.get("SAO_SGLANG_PYTHON", "")  # an interpreter with SGLang for GPUs, if there is one
GAP, GAP_MAX = "train_rollout_logprob_abs_diff", "train_rollout_logprob_abs_diff_max"


@dataclass(frozen=True, kw_only=True)
class Case:
    """One run of `sao serve --drive`, and how far trainer and engine may be apart in nats."""

    name: str
    arguments: tuple[str, ...]
    steps: int
    limit: float


def cases(device: str) -> list[Case]:
    on = f"trainer={device}"
    found = [
        Case(name=f"{device} fp32", arguments=("conf=letters", on, "trainer.dtype=fp32"), steps=40, limit=1e-4),
        # The engine takes the bf16 weights into fp32, so bf16 activations alone are left.
        Case(name=f"{device} bf16", arguments=("conf=letters", on, "trainer.dtype=bf16"), steps=12, limit=0.05),
        # What a newcomer types, also on a machine that has a GPU.
        Case(name="as it is, on the cpu", arguments=("conf=letters",), steps=6, limit=1e-4),
    ]
    if device == "gpu" and SGLANG:
        with_sglang = ("conf=letters", on, "engine=sglang", f"engine.python={SGLANG}", "engine.slots=8")
        in_turns = (*with_sglang, "engine.colocate=true", "machine.gpus=1")
        found.append(Case(name="in turns with SGLang on one GPU", arguments=in_turns, steps=8, limit=0.1))
    return found


def check(findings: Findings, work: Path, case: Case, *, timeout_s: float) -> None:
    name = f"sao serve, {case.name}"
    with findings.checking(name):
        done, seconds = _serve(work, case, timeout_s)
        events = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        steps = [event for event in events if event["event"] == "step"]
        records = [record for file in work.glob("runs/*-*/metrics.jsonl") for record in _records(file)]
        gaps = [record[GAP_MAX] for record in records if record.get(GAP_MAX) is not None]
        moved = sum(record.get("sao/actor_trained") == 1.0 for record in records)
        complete = done.returncode == 0 and len(steps) == case.steps
        findings.add(
            name,
            ok=complete and bool(gaps) and max(gaps) <= case.limit and moved > 0,
            exit=done.returncode,
            seconds=seconds,
            steps=len(steps),
            actor_steps=moved,
            gap_max=max(gaps, default=None),
            gap_mean=[record[GAP] for record in records if record.get(GAP) is not None],
            limit=case.limit,
            clipfrac=[record["pg_clipfrac"] for record in records if record.get("pg_clipfrac")],
            step_seconds=[record.get("time/step_s") for record in records],
            **({} if done.returncode == 0 else {"error": done.stderr[-1500:], "log": _logs(work)[-1500:]}),
        )


def _serve(work: Path, case: Case, timeout_s: float) -> tuple[subprocess.CompletedProcess[str], float]:
    work.mkdir(parents=True, exist_ok=True)
    environment = os.environ | {"NO_COLOR": "1", "SAO_CACHE": str(work / "cache")}
    started = time.perf_counter()
    process = subprocess.Popen(
        [*SAO, *case.arguments, "model=tiny", *QUICK, "--drive", "--steps", str(case.steps), "--json"],
        cwd=work,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        stdout, stderr = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()  # engine and trainer end with it
        stdout, stderr = process.communicate()
        stderr += f"ended after {timeout_s:g} s"
    done = subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)
    print(done.stderr, file=sys.stderr)
    print(_logs(work), file=sys.stderr)
    return done, time.perf_counter() - started


def _records(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def _logs(work: Path) -> str:
    return "\n".join(f"== {log.name}\n{tail(log, 40)}" for log in sorted(work.glob("runs/*-*/logs/*.log")))
