"""A 1.5B model, random weights: actor and critic together, long rollouts; seconds, bytes, tokens per second."""

from __future__ import annotations

import hashlib
import math
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from findings import Findings
from rank import build
from trainerkit import SAO

from saocli.config.trainer import Device, DType, TrainerConfig
from saocli.types import Batch, Sample

SHAPE = {
    "hidden_size": 1536,
    "intermediate_size": 8960,
    "num_hidden_layers": 28,
    "num_attention_heads": 12,
    "num_key_value_heads": 2,
    "vocab_size": 151936,
}
SMALL = SHAPE | {"hidden_size": 96, "intermediate_size": 128, "num_hidden_layers": 2, "vocab_size": 2000}
PROMPT = 256
ROUNDS = 3
# bf16 weight, fp32 gradient, fp32 master, two fp32 moments.
BYTES_PER_PARAMETER = 2 + 4 + 4 + 8
PEAK_FLOPS = 790e12  # measured dense bf16 rate of the chip this was written for
GIB = 2**30


def check(findings: Findings, work: Path, device: torch.device, *, small: bool) -> None:
    lengths = (64, 128) if small else (2048, 4096)
    shape = SMALL if small else SHAPE
    training: Any = None
    with findings.checking("model made and loaded"):
        started = time.perf_counter()
        folder = make_folder(work / "model", shape, device)
        made = time.perf_counter() - started
        _reset(device)
        kind = Device.CPU if device.type == "cpu" else Device.GPU
        config = TrainerConfig(device=kind, dtype=DType.BF16, critic_warmup_steps=0)
        training = build(folder, config, SAO, device)
        learners = (training.actor.learner, training.critic.learner)
        parameters = [learner.parameters for learner in learners]
        expected = sum(parameters) * BYTES_PER_PARAMETER
        held = _allocated(device)
        findings.add(
            "model made and loaded",
            ok=device.type == "cpu" or abs(held / expected - 1) < 0.02,
            parameters=parameters,
            made_s=made,
            built_s=time.perf_counter() - started - made,
            held_gib=held / GIB,
            estimate_gib=expected / GIB,
            estimate=f"{BYTES_PER_PARAMETER} bytes a parameter: bf16 weight 2, fp32 gradient 4, master 4, moments 8",
            peak_while_building_gib=_peak(device) / GIB,
        )
    if training is None:
        return
    for length in lengths:
        with findings.checking(f"step of {PROMPT} + {length} tokens"):
            measure_step(findings, training, length, device)
    with findings.checking("memory given back"):
        check_give_back(findings, training, lengths[-1], device)
    with findings.checking("head chunks"):
        measure_head(findings, training, lengths[-1], device)
    with findings.checking("export"):
        check_export(findings, training, folder, work / "export", device)


def make_folder(folder: Path, shape: dict[str, int], device: torch.device) -> Path:
    """A Qwen2 folder with QKV bias and tied embeddings, weights drawn on the device."""
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM, Qwen2Config

    config = Qwen2Config(
        **shape,
        max_position_embeddings=32768,
        rms_norm_eps=1e-6,
        rope_parameters={"rope_type": "default", "rope_theta": 1_000_000.0},
        tie_word_embeddings=True,
        use_sliding_window=False,
        architectures=["Qwen2ForCausalLM"],
        dtype=torch.bfloat16,
    )
    config.save_pretrained(folder)
    with torch.device("meta"):
        names = AutoModelForCausalLM.from_config(config).state_dict()
    torch.manual_seed(0)
    save_file(
        {
            name: (torch.randn(like.shape, device=device) * 0.02 + float(name.endswith("norm.weight"))).bfloat16().cpu()
            for name, like in names.items()
            if name != "lm_head.weight"
        },
        folder / "model.safetensors",
        metadata={"format": "pt"},
    )
    return folder


def rollout(training: Any, length: int, step: int) -> Batch:
    """One rollout of random tokens, its recorded log-probs the actor's own at this moment."""
    from saocli.trainer.megatron.data import collate

    vocab = training.actor.learner.bridge.hf_config.vocab_size
    ids = torch.randint(0, vocab, (PROMPT + length,), generator=torch.Generator().manual_seed(step)).tolist()

    def sample(logprobs: tuple[float, ...]) -> Sample:
        return Sample(
            receipt=f"r{step}",
            prompt_ids=tuple(ids[:PROMPT]),
            response_ids=tuple(ids[PROMPT:]),
            action_mask=(1,) * length,
            rollout_logprobs=logprobs,
            score=1.0,
            temperature=1.0,
            group=f"g{step}",
            versions=("v0",),
            truncated=False,
            reported_at=0.0,
        )

    with torch.no_grad():
        logp = training.actor.logprobs(collate([sample((0.0,) * length)], [0], training.device))
    return Batch(step=step, samples=(sample(tuple(logp.tolist())),))


def timed_step(training: Any, length: int, step: int, device: torch.device) -> tuple[float, int, Any]:
    """Seconds, peak bytes, output."""
    from saocli.trainer.megatron.step import train_step

    batch = rollout(training, length, step)
    _reset(device)
    started = time.perf_counter()
    output = train_step(training, batch)
    _wait(device)
    return time.perf_counter() - started, _peak(device), output


def measure_step(findings: Findings, training: Any, length: int, device: torch.device) -> None:
    runs = [timed_step(training, length, length + i, device) for i in range(ROUNDS + 1)][1:]
    outputs = [output for _, _, output in runs]
    seconds = statistics.median(run[0] for run in runs)
    parameters = training.actor.learner.parameters
    # Forward and backward are 6 operations a parameter and token: the actor once, the critic K times.
    flops = 6 * parameters * (PROMPT + length) * (1 + training.config.critic_updates)
    metrics = outputs[0].metrics
    findings.add(
        f"step of {PROMPT} + {length} tokens",
        ok=all(output.actor_trained for output in outputs)
        and all(v is None or math.isfinite(v) for output in outputs for v in output.metrics.values())
        and metrics["pg_clipfrac"] == 0.0,
        seconds=[run[0] for run in runs],
        tokens_per_s=(PROMPT + length) / seconds,
        response_tokens_per_s=length / seconds,
        of_peak_rate=flops / seconds / PEAK_FLOPS,
        peak_gib=max(run[1] for run in runs) / GIB,
        above_held_gib=(max(run[1] for run in runs) - _allocated(device)) / GIB,
        gap=metrics["train_rollout_logprob_abs_diff"],
        gap_max=metrics["train_rollout_logprob_abs_diff_max"],
        clipfrac=metrics["pg_clipfrac"],
        grad_norm=[metrics["actor/grad_norm"], metrics["critic/grad_norm"]],
        critic_s=metrics["time/critic_s"],
        actor_s=metrics["time/actor_s"],
    )


def check_give_back(findings: Findings, training: Any, length: int, device: torch.device) -> None:
    """After a step a colocated trainer holds its weights and states and nothing else, as the estimate counts on."""
    from saocli.trainer.megatron.memory import give_back

    timed_step(training, length, 10**5, device)
    kept = _reserved(device)
    started = time.perf_counter()
    give_back(device)
    _wait(device)
    seconds = time.perf_counter() - started
    first, _, _ = timed_step(training, length, 10**5 + 1, device)
    give_back(device)
    held, after = _allocated(device), _reserved(device)
    findings.add(
        "memory given back",
        ok=device.type == "cpu" or after < 1.02 * held,
        reserved_after_step_gib=kept / GIB,
        reserved_after_giving_back_gib=after / GIB,
        held_gib=held / GIB,
        giving_back_s=seconds,
        next_step_s=first,
    )


def measure_head(findings: Findings, training: Any, length: int, device: torch.device) -> None:
    """What the actor's pass alone holds at its peak, by the number of tokens whose logits exist at once."""
    from saocli.trainer.megatron.data import collate

    micro = collate(rollout(training, length, 10**6).samples, [0], device)
    ones = torch.ones(length, device=device, dtype=torch.float64)
    peaks, seconds = {}, {}
    for chunk in (128, 512, 2048, length):
        training.actor._chunk = chunk
        for _ in range(2):
            _reset(device)
            before, started = _allocated(device), time.perf_counter()
            training.actor.accumulate([micro], [ones], training.arm, denominator=length)
            _wait(device)
            peaks[chunk], seconds[chunk] = (_peak(device) - before) / GIB, time.perf_counter() - started
    training.actor.learner.zero_grad()
    vocab = training.actor.learner.bridge.hf_config.vocab_size
    findings.add(
        "head chunks",
        ok=device.type == "cpu" or peaks[512] < peaks[length],
        peak_above_held_gib=peaks,
        seconds=seconds,
        one_fp32_logits_gib={chunk: chunk * vocab * 4 / GIB for chunk in peaks},
    )


@torch.no_grad()
def check_export(findings: Findings, training: Any, source: Path, folder: Path, device: torch.device) -> None:
    from safetensors import safe_open
    from transformers import AutoModelForCausalLM

    from saocli.trainer.megatron.export import WEIGHTS, export_actor

    seconds = []
    for _ in range(2):
        started = time.perf_counter()
        digest = export_actor(training.actor.learner, source, folder)
        seconds.append(time.perf_counter() - started)
    size = (folder / WEIGHTS).stat().st_size
    again = hashlib.sha256()
    with safe_open(folder / WEIGHTS, framework="pt") as file:
        for name in sorted(file.keys()):
            tensor = file.get_tensor(name)
            again.update(f"{name} BF16 {list(tensor.shape)}\n".encode())
            again.update(memoryview(tensor.view(-1).view(torch.uint8).numpy()))
    model = AutoModelForCausalLM.from_pretrained(folder, dtype="auto").to(device)
    ids = torch.arange(512, device=device)[None]
    mine = training.actor.learner.model.hidden(ids)[:, 0] @ training.actor.learner.model.output_weight().T
    gap = (torch.log_softmax(mine.float(), -1) - torch.log_softmax(model(ids).logits[0].float(), -1)).abs()
    findings.add(
        "export",
        ok=again.hexdigest() == digest and float(gap.mean()) < 0.03,
        seconds=seconds,
        gib=size / GIB,
        gib_per_s=size / GIB / seconds[-1],
        digest=digest,
        digest_read_back=again.hexdigest(),
        logp_gap_to_transformers_mean=float(gap.mean()),
        logp_gap_to_transformers_max=float(gap.max()),
    )


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def _reset(device: torch.device) -> None:
    _wait(device)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()


def _allocated(device: torch.device) -> int:
    return torch.cuda.memory_allocated() if device.type == "cuda" else 0


def _reserved(device: torch.device) -> int:
    return torch.cuda.memory_reserved() if device.type == "cuda" else 0


def _peak(device: torch.device) -> int:
    return torch.cuda.max_memory_allocated() if device.type == "cuda" else 0
