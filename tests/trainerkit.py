"""What the trainer's tests share: small random models, rollouts as an engine records them, and a Megatron process."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from saocli.config.arm import ArmConfig
from saocli.config.trainer import TrainerConfig
from saocli.trainer.remote import RemoteTrainer
from saocli.types import Batch, Sample

VOCAB = 131
SAO = ArmConfig(name="sao", eps_low=0.3, eps_high=5.0)
QUICK = TrainerConfig(threads=1, critic_warmup_steps=0, actor_lr=1e-3, critic_lr=1e-3, micro_batch_size=2)


def make_model(folder: Path, kind: str = "llama", *, tied: bool = True, seed: int = 0, **overrides: Any) -> Path:
    """A random two-layer model with grouped-query attention, saved as transformers does."""
    from transformers import AutoConfig, AutoModelForCausalLM

    sizes = {
        "vocab_size": VOCAB,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 512,
        "tie_word_embeddings": tied,
        "initializer_range": 0.1,
        "rope_parameters": {"rope_type": "default", "rope_theta": 5000.0},
        "attention_dropout": 0.0,
    }
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **(sizes | overrides)), dtype=torch.float32)
    with torch.no_grad():
        # Norm weights of 1 and biases of 0 would hide a mix-up.
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    model.save_pretrained(folder)
    return folder


def reference(folder: Path) -> Any:
    """The same model in transformers."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


def hf_logprobs(model: Any, prompt: list[int], response: list[int], temperature: float) -> torch.Tensor:
    """[T] natural-log probabilities of the response's tokens, differentiable."""
    logits = model(torch.tensor([prompt + response])).logits[0] / temperature
    rows = torch.log_softmax(logits.float(), dim=-1)[len(prompt) - 1 : -1]
    return rows.gather(1, torch.tensor(response)[:, None])[:, 0]


def make_sample(
    model: Any,
    seed: int,
    *,
    score: float = 1.0,
    prompt: int = 5,
    response: int = 8,
    temperature: float = 1.0,
    observations: tuple[int, ...] = (),
    shift: float = 0.0,
) -> Sample:
    """A rollout of random tokens whose recorded log-probs are `model`'s own, plus `shift` nats."""
    tokens = torch.randint(0, VOCAB, (prompt + response,), generator=torch.Generator().manual_seed(seed)).tolist()
    head, tail = tokens[:prompt], tokens[prompt:]
    mask = tuple(int(t not in observations) for t in range(response))
    with torch.no_grad():
        logp = hf_logprobs(model, head, tail, temperature).tolist()
    return Sample(
        receipt=f"r{seed}",
        prompt_ids=tuple(head),
        response_ids=tuple(tail),
        action_mask=mask,
        rollout_logprobs=tuple(p + shift if m else 0.0 for p, m in zip(logp, mask, strict=True)),
        score=score,
        temperature=temperature,
        group=f"g{seed}",
        versions=("v0",),
        truncated=False,
        reported_at=0.0,
    )


def mixed_batch(model: Any, step: int = 1) -> Batch:
    """Four rollouts that differ in length, score, temperature and in where observations lie."""
    return Batch(
        step=step,
        samples=(
            make_sample(model, 1, score=1.0, prompt=4, response=9),
            make_sample(model, 2, score=0.0, prompt=7, response=5, temperature=0.7),
            make_sample(model, 3, score=1.0, prompt=3, response=14, observations=(4, 5, 6)),
            make_sample(model, 4, score=0.5, prompt=5, response=6, temperature=1.3, observations=(5,)),
        ),
    )


def shifted(batch: Batch, nats: float) -> Batch:
    """The same batch, its recorded log-probs off by `nats`."""
    return dataclasses.replace(
        batch,
        samples=tuple(
            dataclasses.replace(s, rollout_logprobs=tuple(p + nats for p in s.rollout_logprobs)) for s in batch.samples
        ),
    )


def scattered(batch: Batch, nats: float) -> Batch:
    """The same batch, each recorded log-prob off by its own amount within ±`nats`."""
    generator = torch.Generator().manual_seed(batch.step)

    def off(sample: Sample) -> Sample:
        noise = ((torch.rand(len(sample.rollout_logprobs), generator=generator) * 2 - 1) * nats).tolist()
        moved = tuple(p + n for p, n in zip(sample.rollout_logprobs, noise, strict=True))
        return dataclasses.replace(sample, rollout_logprobs=moved)

    return dataclasses.replace(batch, samples=tuple(off(sample) for sample in batch.samples))


@contextmanager
def megatron_process() -> Iterator[Callable[..., Any]]:
    """`run(function, *args)` in one process that is set up as a trainer's only rank; top-level functions only."""
    with ProcessPoolExecutor(max_workers=1, mp_context=get_context("spawn"), initializer=_become_rank) as pool:
        yield lambda function, *args: pool.submit(function, *args).result(timeout=240)


def _become_rank() -> None:
    from saocli.trainer.megatron import cpu

    cpu.patch()
    torch.set_num_threads(1)
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)

    from saocli.trainer.megatron.build import set_up_ranks

    set_up_ranks(TrainerConfig(), seed=0)


def build_training(folder: Path, config: TrainerConfig = QUICK, arm: ArmConfig = SAO) -> Any:
    """Actor, critic and arm, in the Megatron process."""
    from saocli.trainer.megatron.build import build

    return build(config, arm, folder, torch.device("cpu"), lambda text: None)


def weights(learner: Any) -> dict[str, torch.Tensor]:
    """A copy of every parameter."""
    return {name: tensor.detach().clone() for name, tensor in learner.model.named_parameters()}


def largest_difference(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    assert one.keys() == other.keys()
    return max(float((one[name] - other[name]).abs().max()) for name in one)


@asynccontextmanager
async def started(folder: Path, tmp: Path, config: TrainerConfig = QUICK) -> AsyncIterator[RemoteTrainer]:
    """A trainer in its own processes, ended on exit."""
    trainer = await RemoteTrainer.start(
        config=config, arm=SAO, model_folder=folder, context_length=256, seed=3, log=tmp / "logs" / "trainer.log"
    )
    try:
        yield trainer
    finally:
        await trainer.close()
