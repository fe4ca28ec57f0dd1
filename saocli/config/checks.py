"""What must hold between the values of a run; checked once, when the run is built."""

from __future__ import annotations

import ipaddress
import math
from collections.abc import Iterator, Mapping
from operator import attrgetter
from types import MappingProxyType
from typing import NamedTuple

from saocli.config.arms import arm_names, facts
from saocli.config.engine import EngineKind, Publish
from saocli.config.gateway import GatewayConfig
from saocli.config.run import RunConfig
from saocli.config.tasks import Order, Pacing
from saocli.config.trainer import Device, LrDecay
from saocli.errors import ConfigError

# The least that each number may be.
LEAST: Mapping[str, float] = MappingProxyType(
    {
        "batch_size": 1,
        "max_staleness": 0,
        "context_length": 2,
        "steps": 1,
        "arm.window": 1,
        "trainer.ranks": 1,
        "trainer.tensor_parallel": 1,
        "trainer.threads": 1,
        "trainer.global_batch_size": 1,
        "trainer.micro_batch_size": 1,
        "trainer.actor_lr": 0,
        "trainer.critic_lr": 0,
        "trainer.lr_decay_steps": 0,
        "trainer.critic_updates": 1,
        "trainer.critic_warmup_steps": 0,
        "trainer.adam_beta1": 0,
        "trainer.adam_beta2": 0,
        "trainer.adam_eps": 0,
        "trainer.weight_decay": 0,
        "trainer.clip_grad": 0,
        "trainer.value_clip": 0,
        "trainer.head_chunk": 1,
        "trainer.start_timeout_s": 0,
        "engine.threads": 1,
        "engine.slots": 1,
        "engine.start_timeout_s": 0,
        "engine.tp": 1,
        "engine.dp": 1,
        "engine.publish_timeout_s": 0,
        "gateway.port": 0,
        "gateway.max_body_mb": 0,
        "tasks.count": 0,
        "tasks.attempts": 1,
        "tasks.max_tokens": 1,
        "tasks.temperature": 0,
        "tasks.concurrency": 1,
        "tasks.feedback_s": 0,
        "tasks.feedback_sigma": 0,
        "tasks.grade_timeout_s": 0,
        "tasks.eval.samples": 0,
        "tasks.eval.temperature": 0,
        "tasks.eval.concurrency": 1,
        "metrics.rolling_rollouts": 1,
        "releases.checkpoint_every": 1,
        "releases.keep_last": 1,
        "compare.rollouts": 1,
        "compare.seeds": 1,
        "machine.gpus": 1,
    }
)


class Problem(NamedTuple):
    """One thing that is wrong, and what to do."""

    message: str
    fix: str


def check(config: RunConfig) -> None:
    """Raise ConfigError for the first thing that cannot run; it names the keys and their values."""
    for problem in _problems(config):
        raise ConfigError(problem.message, fix=problem.fix)


def _problems(config: RunConfig) -> Iterator[Problem]:
    yield from _numbers(config)
    yield from _batch(config)
    yield from _arm(config)
    yield from _lengths(config)
    yield from _parallel(config)
    yield from _schedule(config)
    yield from _engine(config)
    yield from _gateway(config)


def _numbers(config: RunConfig) -> Iterator[Problem]:
    for key, least in LEAST.items():
        value = attrgetter(key)(config)
        if value is not None and not (math.isfinite(value) and value >= least):
            yield Problem(f"{key} is {value}", f"it must be a finite number, at least {least:g}")


def _batch(config: RunConfig) -> Iterator[Problem]:
    trainer = config.trainer
    if config.batch_size != trainer.global_batch_size:
        yield Problem(
            f"batch_size is {config.batch_size} but trainer.global_batch_size is {trainer.global_batch_size}",
            "a step trains exactly the batch that was taken: set both to the same number",
        )
    if trainer.micro_batch_size > trainer.global_batch_size:
        yield Problem(
            f"trainer.micro_batch_size is {trainer.micro_batch_size}, "
            f"more than trainer.global_batch_size, {trainer.global_batch_size}",
            f"set trainer.micro_batch_size to at most {trainer.global_batch_size}",
        )


def _arm(config: RunConfig) -> Iterator[Problem]:
    arm, needs = config.arm, facts(config.arm.name)
    if needs is None:
        yield Problem(f"arm.name is '{arm.name}', which is not an arm", f"there are: {' · '.join(arm_names())}")
        return
    if not 0 < arm.eps_low < 1:
        yield Problem(
            f"arm.eps_low is {arm.eps_low}", "ratios above 1 - arm.eps_low are kept: it must lie between 0 and 1"
        )
    if not (math.isfinite(arm.eps_high) and arm.eps_high > 0):
        yield Problem(f"arm.eps_high is {arm.eps_high}", "ratios below 1 + arm.eps_high are kept: it must be above 0")
    if not 0 <= arm.gamma <= 1:
        yield Problem(f"arm.gamma is {arm.gamma}", "it must lie between 0 and 1")
    if not (math.isfinite(arm.lambda_alpha) and arm.lambda_alpha > 0):
        yield Problem(f"arm.lambda_alpha is {arm.lambda_alpha}", "lambda = 1 - 1/(alpha * tokens): it must be above 0")
    if needs.grouped:
        yield from _group(config)
    elif arm.group_size != 1:
        yield Problem(
            f"arm.group_size is {arm.group_size} for arm.name={arm.name}",
            "this arm takes single rollouts: set it to 1",
        )
    if needs.trains:
        yield from _slots(config)


def _group(config: RunConfig) -> Iterator[Problem]:
    """A group is `arm.group_size` consecutive attempts at one problem."""
    arm, tasks, size = config.arm, config.tasks, config.arm.group_size
    if size < 2:
        yield Problem(
            f"arm.group_size is {size} for arm.name={arm.name}", "this arm compares rollouts: at least 2 to a group"
        )
        return
    if tasks.attempts < size:
        times = "once" if tasks.attempts == 1 else f"{tasks.attempts} times"
        yield Problem(
            f"every prompt comes {times} (tasks.attempts={tasks.attempts}): a group of {size} can never form",
            f"set tasks.attempts={size} and tasks.count to 1/{size} for as many rollouts, or take single ones: arm=sao",
        )
    for key, value in (("batch_size", config.batch_size), ("tasks.attempts", tasks.attempts)):
        if value % size:
            yield Problem(
                f"{key} is {value}, not a multiple of arm.group_size, {size}", "a group would never be complete"
            )
    if tasks.order is Order.ROUND_ROBIN:
        yield Problem(
            f"tasks.order is round_robin but arm.name={arm.name} has arm.group_size={size}",
            f"a group is {size} consecutive attempts at one problem: set tasks.order=by_problem",
        )
    if tasks.pacing is Pacing.SLOTS and tasks.concurrency < size:
        yield Problem(
            f"tasks.concurrency is {tasks.concurrency} with tasks.pacing=slots, less than arm.group_size, {size}",
            "a slot is free again once its attempt is trained, so a group needs a slot for each of its rollouts",
        )


def _slots(config: RunConfig) -> Iterator[Problem]:
    tasks = config.tasks
    if tasks.pacing is Pacing.SLOTS and config.batch_size > tasks.concurrency:
        yield Problem(
            f"batch_size is {config.batch_size} with tasks.pacing=slots, more than tasks.concurrency, "
            f"{tasks.concurrency}",
            "a slot is free again once its attempt is trained: with fewer slots than that no batch is ever full",
        )


def _lengths(config: RunConfig) -> Iterator[Problem]:
    if config.tasks.max_tokens >= config.context_length:
        yield Problem(
            f"tasks.max_tokens is {config.tasks.max_tokens} but context_length is {config.context_length}",
            "that leaves no room for a prompt: lower tasks.max_tokens or raise context_length",
        )


def _parallel(config: RunConfig) -> Iterator[Problem]:
    trainer = config.trainer
    if trainer.ranks % trainer.tensor_parallel:
        yield Problem(
            f"trainer.ranks is {trainer.ranks}, not a multiple of trainer.tensor_parallel, {trainer.tensor_parallel}",
            "each model copy takes trainer.tensor_parallel ranks",
        )
        return
    copies = trainer.ranks // trainer.tensor_parallel
    if trainer.global_batch_size % copies:
        yield Problem(
            f"trainer.global_batch_size is {trainer.global_batch_size}, not a multiple of the data-parallel size "
            f"{copies} (trainer.ranks={trainer.ranks} / trainer.tensor_parallel={trainer.tensor_parallel})",
            "each copy trains the same number of rollouts",
        )


def _schedule(config: RunConfig) -> Iterator[Problem]:
    trainer = config.trainer
    if trainer.lr_decay is LrDecay.LINEAR and trainer.lr_decay_steps == 0:
        yield Problem(
            "trainer.lr_decay is linear but trainer.lr_decay_steps is 0",
            "give the number of steps until the learning rate is 0, or trainer.lr_decay=constant",
        )
    for key, beta in (("trainer.adam_beta1", trainer.adam_beta1), ("trainer.adam_beta2", trainer.adam_beta2)):
        if beta >= 1:
            yield Problem(f"{key} is {beta}", "it must be below 1")


def _engine(config: RunConfig) -> Iterator[Problem]:
    engine = config.engine
    if engine.kind is EngineKind.SGLANG:
        yield from _sglang(config)
        return
    if engine.device is Device.GPU:
        yield Problem(
            "engine.kind is embedded but engine.device is gpu", "the embedded engine computes on the CPU: engine=sglang"
        )
    if engine.flags:
        yield Problem("engine.kind is embedded but engine.flags is set", "they are SGLang's: engine=sglang")


def _sglang(config: RunConfig) -> Iterator[Problem]:
    engine = config.engine
    if engine.device is Device.CPU and (engine.tp > 1 or engine.dp > 1):
        yield Problem(
            f"engine.device is cpu but engine.tp is {engine.tp} and engine.dp is {engine.dp}",
            "on a CPU SGLang serves one copy of the model in one piece: set both to 1",
        )
    if engine.publish is Publish.DISTRIBUTED:
        yield Problem(
            "engine.publish is distributed, which the trainer of this version does not speak", "set engine.publish=disk"
        )
    if engine.memory_fraction is not None and not 0 < engine.memory_fraction < 1:
        yield Problem(f"engine.memory_fraction is {engine.memory_fraction}", "it must lie between 0 and 1")
    if engine.kv_tokens is not None and engine.kv_tokens < config.context_length:
        yield Problem(
            f"engine.kv_tokens is {engine.kv_tokens} but context_length is {config.context_length}",
            "the KV cache must hold at least one whole request",
        )
    if not engine.watchdog_s > engine.publish_timeout_s:
        yield Problem(
            f"engine.watchdog_s is {engine.watchdog_s:g} but engine.publish_timeout_s is {engine.publish_timeout_s:g}",
            "SGLang would take a publication for a hang and end itself: raise engine.watchdog_s",
        )


def _gateway(config: RunConfig) -> Iterator[Problem]:
    gateway = config.gateway
    if not gateway.token:
        yield Problem("gateway.token is empty", "give gateway.token=…, or leave it out on a loopback host")
    if gateway.port > 65535:
        yield Problem(f"gateway.port is {gateway.port}", "it must be at most 65535")
    if gateway.token == GatewayConfig.token and not _loopback(gateway.host):
        yield Problem(
            f"gateway.host is {gateway.host}, which others can reach, but gateway.token is the default one",
            "give a secret of your own: gateway.token=…",
        )


def _loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"
