"""How many GPUs this process may use, asked without importing torch."""

from __future__ import annotations

import os
import subprocess


def gpu_count() -> int:
    """NVIDIA GPUs that `nvidia-smi` lists, cut down to CUDA_VISIBLE_DEVICES; 0 where there is no driver."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and visible.strip() in ("", "-1"):
        return 0
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return 0
    found = sum(line.startswith("GPU ") for line in listed.splitlines())
    return found if visible is None else min(found, len(visible.split(",")))
