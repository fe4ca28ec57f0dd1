"""The command line and environment of the trainer's ranks, as a conf asks for them. Pure: nothing is started here."""

from __future__ import annotations

from pathlib import Path

from saocli.config.placement import VISIBLE
from saocli.config.trainer import TrainerConfig
from saocli.process import compute_env, interpreter
from saocli.trainer.channel import SECRET_VARIABLE


def launch_arguments(config: TrainerConfig, setup_file: Path) -> list[str]:
    """The launcher of this node, which starts one process per rank; each reads `setup_file`."""
    return [interpreter(config.python), "-m", "saocli.trainer.launcher", str(setup_file), str(config.ranks)]


def launch_environment(config: TrainerConfig, *, secret: str, gpus: str | None) -> dict[str, str]:
    """`secret` admits the first rank to the channel. `gpus`: the ranks' CUDA_VISIBLE_DEVICES, one each; None: ours."""
    extra = {SECRET_VARIABLE: secret}
    if gpus is not None:
        extra[VISIBLE] = gpus
    return compute_env(config.threads, extra)
