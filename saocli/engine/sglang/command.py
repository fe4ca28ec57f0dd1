"""SGLang's command line and environment, as a conf asks for them. Pure: nothing is started here."""

from __future__ import annotations

import os
from pathlib import Path

from saocli.config.engine import EngineConfig, Pause
from saocli.config.placement import VISIBLE
from saocli.config.trainer import Device, DType
from saocli.process import compute_env, interpreter

HERE = Path(__file__).parent
LEASH = HERE / "leash.py"
CPU_STUB = HERE / "cpu_stub"  # holds `sgl_kernel`; see there
# SGLang refuses prompts of its context length less 6, and cuts an answer off 2 tokens before it: so it gets that many
# more than the conf's, to which the client keeps.
SPARE_TOKENS = 8
DTYPES = {DType.FP32: "float32", DType.BF16: "bfloat16"}
# Taken by keys of the conf, or needed as they are; engine.flags may not set them.
OWN_FLAGS = frozenset(
    {
        "--model-path", "--model", "--host", "--port", "--config", "--api-key", "--admin-api-key", "--device",
        "--dtype", "--context-length", "--weight-version", "--random-seed", "--max-running-requests",
        "--max-total-tokens", "--mem-fraction-static", "--attention-backend", "--tp-size", "--tensor-parallel-size",
        "--dp-size", "--data-parallel-size", "--watchdog-timeout", "--disable-radix-cache", "--skip-server-warmup",
        "--sleep-on-idle", "--enable-memory-saver",
    }
)  # fmt: skip


def server_arguments(
    config: EngineConfig, *, model_folder: Path, version: str, context_length: int, seed: int, port: int, secrets: Path
) -> list[str]:
    """The arguments after `python`, but for `engine.flags`.

    `secrets` is a file with the keys: arguments can be read by every user of the machine.
    """
    values: dict[str, object] = {
        "config": secrets,
        "model-path": model_folder.resolve(),
        "weight-version": version,
        "host": "127.0.0.1",
        "port": port,
        "dtype": DTYPES[config.dtype],  # `auto` would run an fp32 checkpoint as float16
        "context-length": context_length + SPARE_TOKENS,
        "max-running-requests": config.slots,
        "tp-size": config.tp,
        "dp-size": config.dp,
        "random-seed": seed,
        "watchdog-timeout": f"{config.watchdog_s:g}",
    }
    attention, kv_tokens, bare = config.attention, config.kv_tokens, []
    if config.device is Device.CPU:
        values["device"] = "cpu"
        attention = attention or "torch_native"
        # An idle scheduler would keep a core busy that the trainer shares.
        bare += ["skip-server-warmup", "sleep-on-idle"]
    if config.device is Device.CPU or config.colocate:
        # By default SGLang takes most of the memory, whoever else needs it.
        kv_tokens = kv_tokens or config.slots * (context_length + SPARE_TOKENS)
    if config.colocate:
        bare.append("enable-memory-saver")
    if config.pause is Pause.IN_PLACE:
        # Paused in place, the cache of the old weights cannot be flushed: so nothing may be reused from it.
        bare.append("disable-radix-cache")
    optional = {
        "attention-backend": attention,
        "max-total-tokens": kv_tokens,
        "mem-fraction-static": config.memory_fraction,
    }
    values |= {name: value for name, value in optional.items() if value is not None}
    argv = [str(LEASH)]
    for name, value in values.items():
        argv += [f"--{name}", str(value)]
    return argv + [f"--{name}" for name in bare]


def server_environment(
    config: EngineConfig, *, spare_positions: bool = True, gpus: str | None = None
) -> dict[str, str]:
    """The environment of SGLang's processes: our own import path does not reach into its interpreter.

    `spare_positions`: whether the model has positions for the `SPARE_TOKENS`, which no request reaches.
    `gpus`: its CUDA_VISIBLE_DEVICES; None: ours.
    """
    extra = {
        "HF_HUB_OFFLINE": "1",  # the model is on disk
        "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "0",  # else /health generates a token, and takes a second
        "PYTHONPATH": "",
    }
    if config.device is Device.CPU:
        extra |= {"SGLANG_USE_CPU_ENGINE": "1", "PYTHONPATH": str(CPU_STUB), VISIBLE: ""}
    elif gpus is not None:
        extra[VISIBLE] = gpus
    if not spare_positions:
        extra["SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"] = "1"
    env = compute_env(config.threads, extra)
    env["PATH"] = os.pathsep.join(filter(None, [_bin(config), env.get("PATH")]))
    return env


def _bin(config: EngineConfig) -> str | None:
    """The folder of the configured interpreter: SGLang calls tools such as `ninja` from there."""
    return str(Path(interpreter(config.python)).parent) if config.python else None
