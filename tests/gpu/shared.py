"""Memory of this device that two other processes open, each by its own handle, as SGLang's ranks do."""

from __future__ import annotations

import base64
import pickle
import subprocess
import sys
from typing import Any

import torch
from findings import Findings


def check(findings: Findings, device: torch.device) -> None:
    """What the readers see is what was shared, bit for bit."""
    from saocli.trainer.megatron.shared import share

    name = "two processes read a bucket in place"
    with findings.checking(name):
        generator = torch.Generator(device).manual_seed(0)
        shapes = {"a": (1000, 300), "b": (7,), "c": (64, 64)}
        tensors = [(n, torch.randn(s, generator=generator, device=device).bfloat16()) for n, s in shapes.items()]
        payloads, buffer = share(tensors, readers=2)
        read = [_sums(payload) for payload in payloads]
        expected = sums(tensors)
        findings.add(
            name,
            ok=read == [expected, expected],
            device=str(buffer.device),
            payload_bytes=[len(payload) for payload in payloads],
            shared_bytes=buffer.numel() * buffer.itemsize,
        )


def sums(tensors: Any) -> str:
    """Order-dependent integer checksums of the tensors' bits."""
    values = []
    for name, tensor in tensors:
        bits = tensor.contiguous().view(torch.int16).long().flatten().cpu()
        values.append(f"{name}:{int((bits * torch.arange(1, len(bits) + 1)).sum())}")
    return " ".join(values)


def _sums(payload: str) -> str:
    done = subprocess.run([sys.executable, __file__], input=payload, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(done.stderr[-500:])
    return done.stdout.strip()


def main() -> None:
    """A reader: names its GPU's index where the handle has a UUID, as SGLang's `patch_torch` does."""
    from torch.multiprocessing import reductions

    original = reductions.rebuild_cuda_tensor

    def rebuild(*arguments: Any) -> torch.Tensor:
        uuids = [str(torch.cuda.get_device_properties(i).uuid) for i in range(torch.cuda.device_count())]
        return original(*arguments[:6], uuids.index(arguments[6]), *arguments[7:])

    reductions.rebuild_cuda_tensor = rebuild
    print(sums(pickle.loads(base64.b64decode(sys.stdin.read()))))


if __name__ == "__main__":
    main()
