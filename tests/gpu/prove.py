"""Proves the trainer's GPU paths on one GPU in under four minutes: against transformers, the CPU, and estimates.

    [SAO_SGLANG_PYTHON=…] python tests/gpu/prove.py [--out DIR] [--limit 235] [--device cpu --small]

Every finding is one JSON line, in `DIR/findings.jsonl`; everything else the parts print is in `DIR/log.txt`. Ends with
status 1 if a finding failed. `--device cpu --small` runs the same script where there is no GPU, to check the script.

With an interpreter that has SGLang for GPUs in SAO_SGLANG_PYTHON, trainer and SGLang take turns on the one GPU too.

Not provable on one GPU: ranks that talk to each other (NCCL refuses two on one device), and weights broadcast to an
SGLang engine, or read by it from the trainer's memory (other processes read that here).
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import findings
from findings import Findings

from saocli.process import compute_env

PACKAGES = ("torch", "transformers", "megatron-core", "mbridge", "numpy", "safetensors", "fastapi", "triton")
LARGE_S = 100.0  # what the large model needs of the time


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=None, help="where the findings go")
    parser.add_argument("--device", choices=("gpu", "cpu"), default="gpu")
    parser.add_argument("--small", action="store_true", help="a small model in place of the 1.5B one")
    parser.add_argument("--limit", type=float, default=235.0, help="seconds for everything")
    parser.add_argument("--only", default="", help="comma-separated parts")
    parser.add_argument("--part", help=argparse.SUPPRESS)
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.part:
        run_part(args.part, args.work, args.device, small=args.small)
        return
    out = (args.out or Path(tempfile.mkdtemp(prefix="prove-"))).absolute()
    out.mkdir(parents=True, exist_ok=True)
    raise SystemExit(Proof(out, args.device, small=args.small, limit=args.limit, only=args.only).run())


class Proof:
    """Runs the parts in processes of their own: the small ones together, then the large model alone with the GPU."""

    def __init__(self, out: Path, device: str, *, small: bool, limit: float, only: str) -> None:
        self._out, self._device, self._small = out, device, small
        self._only = only.split(",") if only else []
        self._deadline = time.monotonic() + limit
        self._work = Path(tempfile.mkdtemp(prefix="prove-work-"))
        self._findings = Findings(out / "findings.jsonl", group="proof")
        for name in ("findings.jsonl", "log.txt"):
            (out / name).unlink(missing_ok=True)

    def run(self) -> int:
        started = time.monotonic()
        try:
            self._together("environment")
            import_paths()
            import product

            products = [f"product{i}" for i in range(len(product.cases(self._device)))]
            self._together("parity", "parity-cpu", "restore", "shared", *products, until=self._deadline - LARGE_S)
            self._compare()
            self._together("real-size", until=self._deadline)
        finally:
            shutil.rmtree(self._work, ignore_errors=True)
        self._findings.add(
            "not proved here",
            parts=[
                "two or more ranks over NCCL (one GPU takes one rank)",
                "weights broadcast to SGLang, or read by it from the trainer's GPU (it needs one of its own)",
                *([] if product.SGLANG else ["turns with SGLang on one GPU: SAO_SGLANG_PYTHON names no interpreter"]),
            ],
        )
        return self._sum_up(time.monotonic() - started)

    def _together(self, *parts: str, until: float | None = None) -> None:
        """Run the parts at once; what still runs at `until` is ended and counts as failed."""
        wanted = [part for part in parts if not self._only or part.rstrip("0123") in self._only]
        running = {part: self._start(part) for part in wanted}
        for part, process in running.items():
            try:
                code = process.wait(max(1.0, (until or self._deadline) - time.monotonic()))
                if code != 0:
                    self._findings.add(f"part {part}", ok=False, exit=code)
            except subprocess.TimeoutExpired:
                self._findings.add(f"part {part}", ok=False, error="ran out of time")
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        for part in wanted:
            self._collect(part)

    def _start(self, part: str) -> subprocess.Popen[bytes]:
        arguments = ["--part", part, "--work", str(self._work), "--device", self._device]
        log = (self._work / f"{part}.log").open("wb")
        environment = compute_env(2)
        if part == "restore":
            # Bit-exact repeats of matrix products ask for it.
            environment["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
        return subprocess.Popen(
            [sys.executable, __file__, *arguments, *(["--small"] if self._small else [])],
            stdout=log,
            stderr=log,
            env=environment,
            start_new_session=True,
        )

    def _collect(self, part: str) -> None:
        """A part's findings and log into the one file of each."""
        found = self._work / f"{part}.jsonl"
        if found.exists():
            with (self._out / "findings.jsonl").open("a") as file:
                file.write(found.read_text())
            print(found.read_text(), end="", flush=True)
        log = self._work / f"{part}.log"
        with (self._out / "log.txt").open("a") as file:
            file.write(f"\n==== {part}\n{log.read_text(errors='replace')[-400_000:] if log.exists() else ''}")

    def _compare(self) -> None:
        if self._only and "parity" not in self._only:
            return
        import_paths()
        import parity

        parity.compare(self._findings, self._work / "steps-parity.pt", self._work / "steps-parity-cpu.pt")

    def _sum_up(self, seconds: float) -> int:
        lines = findings.read(self._out / "findings.jsonl")
        failed = [line for line in lines if line.get("ok") is False]
        passed = sum(line.get("ok") is True for line in lines)
        print(f"\n{passed} passed, {len(failed)} failed in {seconds:.0f} s   ({self._out})")
        for line in failed:
            print(f"FAILED {line['group']}: {line['check']}  {line.get('error', '')}")
        return bool(failed) or passed == 0


def run_part(part: str, work: Path, device: str, *, small: bool) -> None:
    """In a process of its own."""
    import_paths()
    found = Findings(work / f"{part}.jsonl", group=part)
    if part == "environment":
        environment(found, device)
        return
    if part.startswith("product"):
        import product

        case = product.cases(device)[int(part[-1])]
        product.check(found, work / part, case, timeout_s=125.0)
        return
    import rank

    here = "cpu" if part == "parity-cpu" else device
    with found.checking("joins as a rank"):
        where = rank.join(here)
    folder = work / f"files-{part}"
    match part:
        case "parity" | "parity-cpu":
            import parity

            folders = parity.models(folder)
            if part == "parity":
                parity.check_models(found, folders, where)
                parity.bf16_steps(found, folders["qwen2 tied"], where)
            parity.run_steps(found, folders["qwen2 tied"], where, work / f"steps-{part}.pt")
        case "restore":
            import restore

            restore.check(found, folder, where)
        case "shared":
            import shared

            shared.check(found, where)
        case "real-size":
            import real_size

            real_size.check(found, folder, where, small=small)


def import_paths() -> None:
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))


def environment(found: Findings, device: str) -> None:
    import torch

    with found.checking("environment"):
        host = socket.gethostname()
        try:
            address = socket.gethostbyname(host)
        except OSError as error:
            address = f"unresolved: {error}"
        found.add(
            "environment",
            ok=device == "cpu" or torch.cuda.is_available(),
            python=platform.python_version(),
            kernel=platform.release(),
            cpus=os.cpu_count(),
            memory_gib=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30,
            disk_free_gib=shutil.disk_usage(tempfile.gettempdir()).free / 2**30,
            packages={name: _version(name) for name in PACKAGES},
            host_resolves_to=address,
            tf32=torch.backends.cuda.matmul.allow_tf32,
            cuda=torch.version.cuda,
        )
        if torch.cuda.is_available():
            properties = torch.cuda.get_device_properties(0)
            found.add(
                "gpu",
                name=properties.name,
                capability=list(torch.cuda.get_device_capability(0)),
                memory_gib=properties.total_memory / 2**30,
                nccl=list(torch.cuda.nccl.version()),
                count=torch.cuda.device_count(),
            )


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


if __name__ == "__main__":
    main()
