"""This process as the trainer's only rank, and the trainer's parts in it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

from saocli.config.arm import ArmConfig
from saocli.config.trainer import Device, TrainerConfig


def join(device: str) -> torch.device:
    """Become a rank as the worker does (NCCL on a GPU, gloo on a CPU), without a launcher. TF32 stays off."""
    if device == "cpu":
        from torch.utils._device import _device_constructors

        from saocli.trainer.megatron import cpu

        # transformers loads models under a device context, whose list of functions must name the unpatched ones.
        _device_constructors()
        cpu.patch()
    os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}

    from saocli.trainer.megatron.build import join_ranks

    return join_ranks(TrainerConfig(device=Device(device)), seed=0)


def build(folder: Path, config: TrainerConfig, arm: ArmConfig, device: torch.device) -> Any:
    """Actor, critic and arm."""
    from saocli.trainer.megatron.build import build

    return build(config, arm, folder, device, lambda text: print(f"# {text}", flush=True))


def exported(learner: Any) -> dict[str, torch.Tensor]:
    """Copies of the weights on the CPU, under their Hugging Face names."""
    with torch.no_grad():
        return {name: tensor.detach().cpu().clone() for name, tensor in learner.bridge.export_weights([learner.model])}


def state(learner: Any) -> dict[str, torch.Tensor]:
    """Everything an update depends on: parameters, fp32 masters, Adam's moments and step counts."""
    tensors = {name: tensor.detach().clone() for name, tensor in learner.model.named_parameters()}
    adam = learner.optimizer.optimizer
    for i, parameter in enumerate(learner.optimizer.get_parameters()):
        tensors[f"master {i}"] = parameter.detach().clone()
        tensors |= {f"{key} {i}": value.detach().clone() for key, value in adam.state[parameter].items()}
    return tensors


def largest(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    """Largest absolute difference of two sets of tensors."""
    assert one.keys() == other.keys(), one.keys() ^ other.keys()
    return max(float((one[name].double() - other[name].double()).abs().max()) for name in one)
