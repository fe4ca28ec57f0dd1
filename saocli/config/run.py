"""RunConfig: a whole run, and the checks of what must agree."""

from __future__ import annotations

from dataclasses import dataclass, field

from omegaconf import MISSING

from saocli.config.arm import ArmConfig
from saocli.config.compare import CompareConfig
from saocli.config.engine import EngineConfig
from saocli.config.gateway import GatewayConfig
from saocli.config.machine import MachineConfig
from saocli.config.metrics import MetricsConfig
from saocli.config.model import ModelConfig
from saocli.config.releases import ReleasesConfig
from saocli.config.tasks import TasksConfig
from saocli.config.trainer import TrainerConfig


@dataclass(frozen=True)
class RunConfig:
    """Everything a run is, in one frozen value."""

    name: str = MISSING  # the conf's name
    scenario: str = MISSING  # the scenario that this run trains
    seed: int = 0  # sampling, task draws and made models
    batch_size: int = 1  # rollouts per optimizer step; must equal trainer.global_batch_size
    max_staleness: int = 0  # accepted steps between producing and training weights
    context_length: int = 1024  # prompt + response tokens that engine and trainer accept
    steps: int | None = None  # stop after this many commits; None: until stopped
    description: str = ""  # one line for `sao conf`
    arm: ArmConfig = field(default_factory=ArmConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)
    gateway: GatewayConfig = field(default_factory=GatewayConfig)
    tasks: TasksConfig = field(default_factory=TasksConfig)
    metrics: MetricsConfig = field(default_factory=MetricsConfig)
    releases: ReleasesConfig = field(default_factory=ReleasesConfig)
    compare: CompareConfig = field(default_factory=CompareConfig)
    machine: MachineConfig = field(default_factory=MachineConfig)
    profiles: dict[str, list[str]] = field(default_factory=dict)  # machine kind -> Hydra overrides
