"""From configuration to models and optimizers in memory."""

from __future__ import annotations

import datetime
import os
from collections.abc import Callable
from pathlib import Path

import torch
from megatron.core import parallel_state, tensor_parallel
from torch.distributed import FileStore, HashStore, Store

from saocli.arms.registry import build_arm
from saocli.arms.untrained import refusal
from saocli.config.arm import ArmConfig
from saocli.config.trainer import Device, DType, FreezeAttention, TrainerConfig
from saocli.errors import TrainerError
from saocli.trainer.launcher import MEETING
from saocli.trainer.megatron.actor import Actor
from saocli.trainer.megatron.bridge import make_bridge, read_config
from saocli.trainer.megatron.critic import Critic
from saocli.trainer.megatron.learner import Learner
from saocli.trainer.megatron.model import Backbone, load_actor, load_critic
from saocli.trainer.megatron.step import Training

TORCH_DTYPE = {DType.FP32: torch.float32, DType.BF16: torch.bfloat16}
# Ranks wait for the next command in a collective, which may come after hours.
PATIENCE = datetime.timedelta(days=365)


def join_ranks(config: TrainerConfig, *, seed: int) -> torch.device:
    """Meet the other ranks that the launcher started and set up Megatron's groups; returns this rank's device."""
    gpu = config.device is Device.GPU
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if gpu:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    store: Store = FileStore(os.environ[MEETING], ranks) if ranks > 1 else HashStore()
    torch.distributed.init_process_group(
        "nccl" if gpu else "gloo", store=store, rank=rank, world_size=ranks, timeout=PATIENCE
    )
    set_up_ranks(config, seed=seed)
    return torch.device("cuda", torch.cuda.current_device()) if gpu else torch.device("cpu")


def set_up_ranks(config: TrainerConfig, *, seed: int) -> None:
    """Divide the process group into Megatron's, and seed. Raises TrainerError for sizes that do not fit."""
    ranks = torch.distributed.get_world_size()
    if ranks % config.tensor_parallel:
        raise TrainerError(
            f"{ranks} ranks are no multiple of tensor_parallel={config.tensor_parallel}",
            fix="change trainer.ranks or trainer.tensor_parallel",
        )
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=config.tensor_parallel)
    torch.manual_seed(seed)
    # The inference tracker forks no CUDA generator; with dropout 0 nothing draws from it either way.
    tensor_parallel.model_parallel_cuda_manual_seed(seed, inference_rng_tracker=True)


def build(
    config: TrainerConfig, arm_config: ArmConfig, folder: Path, device: torch.device, progress: Callable[[str], None]
) -> Training:
    """Load actor and, if the arm has one, critic from one Hugging Face folder.

    Raises ConfigError for an arm that cannot be built, TrainerError for a model that cannot or an arm without training.
    """
    arm = build_arm(arm_config)
    if not arm.trains:
        raise refusal(arm.name)
    hf_config = read_config(folder)
    dtype = TORCH_DTYPE[config.dtype]
    progress("loading actor")
    bridge = make_bridge(hf_config, dtype)
    actor = Actor(Learner(load_actor(bridge, folder), bridge, config), head_chunk=config.head_chunk)
    critic = None
    if arm.uses_critic:
        progress("loading critic")
        bridge = make_bridge(hf_config, dtype)
        model = load_critic(bridge, folder)
        if config.freeze_attention is FreezeAttention.ALWAYS or (
            config.freeze_attention is FreezeAttention.AUTO and bridge.config.num_moe_experts
        ):
            freeze_attention(model)
        critic = Critic(Learner(model, bridge, config), value_clip=config.value_clip)
    return Training(actor=actor, critic=critic, arm=arm, config=config, device=device)


def freeze_attention(model: Backbone) -> None:
    """Leave only feed-forward parts, norms and head trainable."""
    for layer in model.decoder.layers:
        layer.self_attention.requires_grad_(False)
