"""A model that learns: Megatron's DDP around it, its optimizer, and an update that is either finite or refused."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.optimizer.clip_grads import clip_grad_by_total_norm_fp32

from saocli.config.trainer import DType, TrainerConfig
from saocli.trainer.megatron.families import LLMBridge
from saocli.trainer.megatron.model import Backbone


class Learner:
    """Parameters, gradients and Adam state of one model; `lr` is set anew for each update."""

    def __init__(self, model: Backbone, bridge: LLMBridge, config: TrainerConfig) -> None:
        self.model = model
        self.bridge = bridge
        self._clip = config.clip_grad
        bf16 = config.dtype is DType.BF16
        self._ddp = DistributedDataParallel(
            bridge.config,
            DistributedDataParallelConfig(grad_reduce_in_fp32=True, overlap_grad_reduce=False, bucket_size=None),
            model,
        )
        self.optimizer = get_megatron_optimizer(
            OptimizerConfig(
                optimizer="adam",
                lr=0.0,
                weight_decay=config.weight_decay,
                adam_beta1=config.adam_beta1,
                adam_beta2=config.adam_beta2,
                adam_eps=config.adam_eps,
                clip_grad=config.clip_grad,
                bf16=bf16,
                params_dtype=bridge.config.params_dtype,
            ),
            [self._ddp],
        )
        # torch's default implementation makes parameter-sized temporaries; the fused one updates in place.
        for group in self.optimizer.param_groups:
            group["fused"], group["foreach"] = True, False
        fill_adam_state(self.optimizer.optimizer)

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    @property
    def parameters(self) -> int:
        """Number of parameters on this rank."""
        return sum(parameter.numel() for parameter in self.model.parameters())

    def zero_grad(self) -> None:
        """Forget the gradients of the last pass."""
        self._ddp.zero_grad_buffer()
        self.optimizer.zero_grad()

    def finish_backward(self) -> float:
        """Sum gradients over data-parallel ranks and return their global L2 norm, NaN or inf included."""
        finalize_model_grads([self._ddp])
        self.optimizer.prepare_grads()
        return float(self.optimizer.get_grad_norm())

    def update(self, *, lr: float, grad_norm: float) -> None:
        """Clip to the configured norm and take one AdamW step. Requires a finite `grad_norm`."""
        assert math.isfinite(grad_norm), "refuse the update before this"
        if self._clip > 0:
            clip_grad_by_total_norm_fp32(self.optimizer.get_parameters(), self._clip, grad_norm)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.optimizer.step_with_ready_grads()

    def sharded_state(self, *, loading: bool) -> dict[str, Any]:
        """What a checkpoint keeps of it."""
        model = self.model.sharded_state_dict()
        return {"model": model, "optimizer": self.optimizer.sharded_state_dict(model, is_loading=loading)}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Take over what `sharded_state` described and a checkpoint filled."""
        self.model.load_state_dict(state["model"])
        adam = state["optimizer"]
        # Megatron leaves out a step count of 0; in bf16 the Adam state lies one level deeper, beside fp32 masters.
        adam.get("optimizer", adam)["state"].setdefault("common_step", torch.zeros((), dtype=torch.float32))
        self.optimizer.load_state_dict(adam)


def fill_adam_state(adam: torch.optim.Optimizer) -> None:
    """Give every parameter its Adam state now, as zeros.

    Megatron's checkpoints need it even where no update was made yet (the actor's during critic warm-up).
    """
    for group in adam.param_groups:
        for parameter in group["params"]:
            adam.state[parameter] = {
                "step": torch.zeros((), dtype=torch.float32, device=parameter.device),
                "exp_avg": torch.zeros_like(parameter),
                "exp_avg_sq": torch.zeros_like(parameter),
            }
