"""Stands in for SGLang's compiled kernels, which exist for CUDA and for CPUs with AMX only.

SGLang imports `sgl_kernel` wherever it runs, but on a CPU without AMX every operation of a Llama, Qwen2 or Qwen3 falls
through to torch and none of the names below is ever called. This package is on the `PYTHONPATH` of the engine's process
alone, and only for `engine.device=cpu`; a real `sgl_kernel` is never hidden on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__version__ = "0.0.0+cpu.stub"
# Without submodules: importing one fails as it would without the kernels.
globals()["__path__"] = []


def __getattr__(name: str) -> Callable[..., Any]:
    if not name.endswith("_cpu"):
        raise AttributeError(name)

    def missing(*args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(f"sgl_kernel.{name} needs a CPU with AMX; this one runs without compiled kernels")

    return missing
