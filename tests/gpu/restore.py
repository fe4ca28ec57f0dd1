"""Saving, loading and exporting the trainer's state."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import Any

import torch
from findings import Findings
from rank import build, exported, largest, state
from trainerkit import QUICK, SAO, make_model, mixed_batch, reference, scattered

from saocli.config.trainer import DType
from saocli.types import Batch

HALF = 3


def check(findings: Findings, work: Path, device: torch.device) -> None:
    folder = make_model(work / "model", "qwen2")
    batches = [scattered(mixed_batch(reference(folder), step), 1.0) for step in range(1, 2 * HALF + 1)]
    for dtype in (DType.FP32, DType.BF16):
        with findings.checking(f"{dtype} run twice, as torch is set up by default"):
            first, second = (_run(folder, dtype, device, batches) for _ in range(2))
            findings.add(f"{dtype} run twice, as torch is set up by default", difference=_apart(first, second))
    torch.use_deterministic_algorithms(True, warn_only=True)
    for dtype in (DType.FP32, DType.BF16):
        with findings.checking(f"{dtype} saved and loaded half way"):
            _check_restore(findings, work / dtype, folder, dtype, device, batches)


def _check_restore(
    findings: Findings, work: Path, folder: Path, dtype: DType, device: torch.device, batches: list[Batch]
) -> None:
    from saocli.trainer.megatron.checkpoint import load, save
    from saocli.trainer.megatron.export import export_actor
    from saocli.trainer.megatron.step import train_step

    work.mkdir()
    straight = _run(folder, dtype, device, batches)
    stopped = _run(folder, dtype, device, batches[:HALF])
    started = time.perf_counter()
    save(stopped, work / "state")
    saved = time.perf_counter() - started
    resumed = _run(folder, dtype, device, [])
    started = time.perf_counter()
    load(resumed, work / "state")
    loaded = time.perf_counter() - started
    at_once = _apart(stopped, resumed)
    for batch in batches[HALF:]:
        train_step(resumed, batch)
    at_end = _apart(straight, resumed)
    findings.add(
        f"{dtype} saved and loaded half way",
        ok=at_once == at_end == 0.0 and resumed.position == straight.position == 2 * HALF,
        difference_after_load=at_once,
        difference_after_three_more_steps=at_end,
        limit=0.0,
        save_s=saved,
        load_s=loaded,
        bytes=sum(file.stat().st_size for file in (work / "state").rglob("*") if file.is_file()),
    )
    with findings.checking(f"{dtype} export loads in transformers"):
        digests = [
            export_actor(training.actor.learner, folder, work / f"export{i}")
            for i, training in enumerate((straight, resumed))
        ]
        _check_export(findings, work / "export1", digests, resumed.actor, dtype, device)


@torch.no_grad()
def _check_export(
    findings: Findings, folder: Path, digests: list[str], actor: Any, dtype: DType, device: torch.device
) -> None:
    from transformers import AutoModelForCausalLM

    model, info = AutoModelForCausalLM.from_pretrained(folder, dtype="auto", output_loading_info=True)
    theirs = model.state_dict()
    ours = exported(actor.learner)
    ids = torch.arange(40, device=device)[None]
    logits = actor.learner.model.hidden(ids)[:, 0] @ actor.learner.model.output_weight().T
    gap = float((logits.float() - model.to(device)(ids).logits[0].float()).abs().max())
    numbers = {
        "weights_difference": largest(ours, {name: theirs[name].cpu() for name in ours}),
        "logits_gap": gap,
        "dtype": str(model.dtype),
        "missing": sorted(map(str, info["missing_keys"])),
    }
    ok = (
        digests[0] == digests[1]
        and numbers["weights_difference"] == 0.0
        and not numbers["missing"]
        and model.dtype is next(actor.learner.model.parameters()).dtype
        and gap <= (1e-4 if dtype is DType.FP32 else 0.1)
    )
    findings.add(f"{dtype} export loads in transformers", ok=ok, digests=digests, **numbers)


def _run(folder: Path, dtype: DType, device: torch.device, batches: list[Batch]) -> Any:
    from saocli.trainer.megatron.step import train_step

    training = build(folder, dataclasses.replace(QUICK, dtype=dtype), SAO, device)
    for batch in batches:
        train_step(training, batch)
    return training


def _apart(one: Any, other: Any) -> float:
    """Largest difference in anything that decides the next step."""
    return max(
        largest(state(one.actor.learner), state(other.actor.learner)),
        largest(state(one.critic.learner), state(other.critic.learner)),
    )
