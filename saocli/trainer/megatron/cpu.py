"""Megatron-core 0.16 on CPU: every patch there is, each with the line that needs it.

Megatron asks for CUDA by name in places that have nothing to do with kernels. `patch()` answers those places with the
CPU. The worker process alone calls it, once, and only when `trainer.device=cpu`. Line numbers are megatron-core 0.16.1.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch


def patch() -> None:
    """Make this process's torch answer `cuda` requests with the CPU."""
    cpu = torch.device("cpu")
    # Where there is a GPU all the same, Megatron (and our bridge and checkpoint) must not find it.
    torch.cuda.is_available = lambda: False
    # transformer/dot_product_attention.py, rotary_pos_embedding.py:162, optimizer.py:1141, mbridge core/bridge.py:321
    torch.cuda.current_device = lambda: cpu  # type: ignore[assignment, return-value]
    # dist_checkpointing/strategies/filesystem_async.py (preload_tensors), async_utils.py
    torch.cuda.synchronize = lambda device=None: None
    # optimizer.py:473,481,485,907 and clip_grads.py:90 build their scalars with device='cuda'
    torch.tensor = _on_cpu(torch.tensor)
    # clip_grads.py:103,115,174,207
    torch.zeros = _on_cpu(torch.zeros)
    # optimizer.py:671,690 and clip_grads.py:167 compare Tensor.type() with 'torch.cuda.*Tensor'
    torch.Tensor.type = _cuda_type_name(torch.Tensor.type)  # type: ignore[method-assign]
    # tensor_parallel/random.py:235-240 saves and seeds the CUDA generator when a tracker state is added
    torch.cuda.get_rng_state = lambda device="cuda": torch.get_rng_state()
    torch.cuda.manual_seed = lambda seed: None
    # jit.py:11 compiles fused kernels that only CUDA runs call; importing the compiler takes seconds and 150 MB
    torch.compile = lambda model=None, **_options: model


def _on_cpu(factory: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """`factory`, with device='cuda' read as the CPU."""

    @functools.wraps(factory)
    def create(*args: Any, **kwargs: Any) -> torch.Tensor:
        if kwargs.get("device") == "cuda":
            kwargs["device"] = "cpu"
        return factory(*args, **kwargs)

    return create


def _cuda_type_name(original: Callable[..., Any]) -> Callable[..., Any]:
    """`Tensor.type`, whose name of a type (asked without arguments) is that of the CUDA tensor."""

    @functools.wraps(original)
    def type_name(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        answer = original(self, *args, **kwargs)
        return answer.replace("torch.", "torch.cuda.", 1) if isinstance(answer, str) else answer

    return type_name
