"""The trainer's numbers on a GPU: against transformers there, and against the trainer's own on the CPU."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import torch
from findings import Findings
from rank import build, exported, largest, state
from trainerkit import QUICK, SAO, make_model, mixed_batch, reference, scattered

from saocli.arms.registry import REGISTRY
from saocli.config.arm import ArmConfig
from saocli.config.trainer import DType
from saocli.models.tiny import build_tiny
from saocli.types import Batch

# A large eps keeps rounding of tiny gradients, which Adam would divide by, out of a comparison.
CALM = dataclasses.replace(QUICK, adam_eps=1e-3)
GROUPED = ("grpo", "grpo_dis")
FP32_LIMIT = 1e-4
BF16_MEAN_LIMIT = 0.03  # nats between two bf16 implementations; the models' logits have a spread of about 1
TIMES = "time/"


def models(work: Path) -> dict[str, Path]:
    """Tied and untied, with and without biases and norms on queries and keys, and the product's own tiny model."""
    (work / "tiny").mkdir(parents=True)
    build_tiny(work / "tiny", 0)
    return {
        "llama tied": make_model(work / "llama", "llama"),
        "qwen2 tied": make_model(work / "qwen2", "qwen2"),
        "qwen3 untied": make_model(work / "qwen3", "qwen3", tied=False),
        "tiny": work / "tiny",
    }


def check_models(findings: Findings, folders: dict[str, Path], device: torch.device) -> None:
    for name, folder in folders.items():
        for dtype in (DType.FP32, DType.BF16):
            with findings.checking(f"{name} {dtype} equals transformers"):
                actor = build(folder, dataclasses.replace(CALM, dtype=dtype), SAO, device).actor
                _check_model(findings, name, folder, actor, dtype, device)


@torch.no_grad()
def _check_model(findings: Findings, name: str, folder: Path, actor: Any, dtype: DType, device: torch.device) -> None:
    from transformers import AutoModelForCausalLM

    from saocli.trainer.megatron.build import TORCH_DTYPE
    from saocli.trainer.megatron.data import collate

    samples = mixed_batch(reference(folder)).samples
    ours = actor.logprobs(collate(samples, range(len(samples)), device))
    theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=TORCH_DTYPE[dtype]).to(device)
    exact = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).to(device)
    row = torch.tensor([[*samples[0].prompt_ids, *samples[0].response_ids]], device=device)
    logits = actor.learner.model.hidden(row)[:, 0] @ actor.learner.model.output_weight().T
    numbers = {
        "logits": float((logits.float() - theirs(row).logits[0].float()).abs().max()),
        "logits_spread": float(logits.float().std()),
        "logp": float((ours - _logprobs(theirs, samples)).abs().max()),
        "logp_mean": float((ours - _logprobs(theirs, samples)).abs().mean()),
    }
    if dtype is DType.FP32:
        ok = max(numbers["logits"], numbers["logp"]) <= FP32_LIMIT
        findings.add(f"{name} fp32 equals transformers", ok=ok, limit=FP32_LIMIT, **numbers)
        return
    truth = _logprobs(exact, samples)
    numbers["mean_error"] = float((ours - truth).abs().mean())
    numbers["mean_error_of_transformers"] = float((_logprobs(theirs, samples) - truth).abs().mean())
    ok = numbers["logp_mean"] <= BF16_MEAN_LIMIT and numbers["mean_error"] <= BF16_MEAN_LIMIT
    findings.add(f"{name} bf16 equals transformers", ok=ok, limit_mean=BF16_MEAN_LIMIT, **numbers)


def _logprobs(model: Any, samples: tuple[Any, ...]) -> torch.Tensor:
    """Of the action tokens, in the micro-batch's order; softmax in fp32 as the trainer's."""
    found = []
    for sample in samples:
        ids = torch.tensor([[*sample.prompt_ids, *sample.response_ids]], device=model.device)
        rows = torch.log_softmax(model(ids).logits[0].float() / sample.temperature, dim=-1)
        logp = rows[:-1].gather(1, ids[0, 1:, None])[len(sample.prompt_ids) - 1 :, 0]
        found.append(logp[torch.tensor(sample.action_mask, device=model.device).bool()])
    return torch.cat(found)


def batches_for(arm: str, folder: Path) -> list[Batch]:
    """One on policy, two that the band partly masks; with the group or the history that the arm asks for."""
    first = [mixed_batch(reference(folder), step) for step in (1, 2, 3)]
    made = [first[0], *(scattered(batch, 2.5) for batch in first[1:])]
    extra: dict[str, Any] = {"group": "one"} if arm in GROUPED else {}
    if arm == "running_mean":
        extra = {"history": (0.0, 0.25, 0.5)}
    return [
        dataclasses.replace(batch, samples=tuple(dataclasses.replace(s, **extra) for s in batch.samples))
        for batch in made
    ]


def run_steps(findings: Findings, folder: Path, device: torch.device, target: Path) -> None:
    """Three fp32 steps of every trained arm; what they gave is left in `target` for `compare`."""
    from saocli.trainer.megatron.step import train_step

    results = {}
    for name, kind in REGISTRY.items():
        if not getattr(kind, "trains", True):
            continue
        with findings.checking(f"three {name} steps"):
            arm = ArmConfig(name=name, eps_low=0.3, eps_high=5.0, group_size=4 if name in GROUPED else 1)
            training = build(folder, CALM, arm, device)
            learners = {"actor": training.actor.learner}
            before = exported(training.actor.learner)
            if training.critic is not None:
                learners["critic"] = training.critic.learner
            outputs = [train_step(training, batch) for batch in batches_for(name, folder)]
            results[name] = {
                "metrics": [dict(output.metrics) for output in outputs],
                "trained": [output.actor_trained for output in outputs],
                "before": before,
                "after": exported(training.actor.learner),
                "critic": {
                    key: value.detach().cpu().clone()
                    for key, value in (learners["critic"].model.named_parameters() if "critic" in learners else ())
                },
            }
    torch.save(results, target)


def bf16_steps(findings: Findings, folder: Path, device: torch.device) -> None:
    """Updates far below bf16's resolution arrive in the fp32 masters, and everything stays finite."""
    from saocli.trainer.megatron.step import train_step

    with findings.checking("three bf16 steps"):
        training = build(folder, dataclasses.replace(QUICK, dtype=DType.BF16, actor_lr=1e-5), SAO, device)
        learner = training.actor.learner
        before = state(learner)
        outputs = [train_step(training, mixed_batch(reference(folder), step)) for step in (1, 2, 3)]
        after = state(learner)
        values = [v for output in outputs for v in output.metrics.values() if v is not None]
        masters = [key for key in after if key.startswith("master ")]
        moved = largest({k: before[k] for k in masters}, {k: after[k] for k in masters})
        ok = (
            all(output.actor_trained for output in outputs)
            and all(math.isfinite(v) for v in values)
            and all(bool(torch.isfinite(t).all()) for t in after.values())
            and learner.model.output_weight().dtype is torch.bfloat16
            and after["master 0"].dtype is torch.float32
            and 2e-5 < moved < 4e-5
        )
        findings.add(
            "three bf16 steps",
            ok=ok,
            masters_moved=moved,
            expected_moved="about 3 × lr = 3e-5",
            gap=outputs[0].metrics["train_rollout_logprob_abs_diff"],
            clipfrac=[output.metrics["pg_clipfrac"] for output in outputs],
            grad_norm=[output.metrics["actor/grad_norm"] for output in outputs],
        )


def compare(findings: Findings, ours: Path, reference_file: Path) -> None:
    """GPU against CPU, arm by arm: every reported number, and the weights relative to how far they moved."""
    gpu, cpu = torch.load(ours), torch.load(reference_file)
    for name in sorted(gpu.keys() | cpu.keys()):
        with findings.checking(f"{name} on this device equals the CPU"):
            one, other = gpu[name], cpu[name]
            gaps: dict[str, float] = {}
            for mine, theirs in zip(one["metrics"], other["metrics"], strict=True):
                assert {k for k, v in mine.items() if v is None} == {k for k, v in theirs.items() if v is None}
                for key, value in mine.items():
                    if value is not None and not key.startswith(TIMES):
                        gap = abs(value - theirs[key]) / max(1.0, abs(theirs[key]))
                        gaps[key] = max(gap, gaps.get(key, 0.0))
            worst = max(gaps, key=lambda key: gaps[key])
            change = math.sqrt(sum(float((other["after"][k] - w).norm()) ** 2 for k, w in other["before"].items()))
            apart = math.sqrt(sum(float((one["after"][k] - w).norm()) ** 2 for k, w in other["after"].items()))
            numbers = {
                "metrics_gap": gaps[worst],
                "worst_metric": worst,
                "weights_gap": largest(one["after"], other["after"]),
                "weights_gap_relative_to_change": apart / change,
                "critic_gap": largest(one["critic"], other["critic"]) if one["critic"] else 0.0,
            }
            first = one["metrics"][0]
            ok = (
                one["trained"] == other["trained"]
                and max(v for v in numbers.values() if isinstance(v, float)) <= FP32_LIMIT * 10
                and max(numbers["metrics_gap"], numbers["weights_gap"], numbers["critic_gap"]) <= FP32_LIMIT
                and first["pg_clipfrac"] == 0.0
            )
            findings.add(
                f"{name} on this device equals the CPU",
                ok=ok,
                limit=FP32_LIMIT,
                **numbers,
                trained=one["trained"],
                pg_loss=[metrics["pg_loss"] for metrics in one["metrics"]],
                pg_loss_cpu=[metrics["pg_loss"] for metrics in other["metrics"]],
                grad_norm=[metrics["actor/grad_norm"] for metrics in one["metrics"]],
                grad_norm_cpu=[metrics["actor/grad_norm"] for metrics in other["metrics"]],
                clipfrac=[metrics["pg_clipfrac"] for metrics in one["metrics"]],
                gap_on_policy=first["train_rollout_logprob_abs_diff_max"],
            )
