"""One training step against the bare Megatron forwards and backwards it consists of, and the memory of it all.

    python tests/bench/bench_step.py MODEL_FOLDER [--prompt 128] [--response 128] [--rollouts 1] [--threads 1] [--bf16]

Bare: Megatron's own GPTModel with its own attention and its language-model loss over the same token ids, once for the
actor and K times for the critic, without optimizer. Memory: peak resident set against parameters, gradients and
optimizer states of both models. Runs alone on a quiet machine, or the numbers mean nothing.
"""

from __future__ import annotations

import argparse
import dataclasses
import resource
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch

from saocli.trainer.megatron import cpu

cpu.patch()

from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec  # noqa: E402
from megatron.core.models.gpt.gpt_model import GPTModel  # noqa: E402

from saocli.config.arm import ArmConfig  # noqa: E402
from saocli.config.trainer import DType, TrainerConfig  # noqa: E402
from saocli.trainer.megatron.bridge import make_bridge, read_config  # noqa: E402
from saocli.trainer.megatron.build import TORCH_DTYPE, build, set_up_ranks  # noqa: E402
from saocli.trainer.megatron.step import train_step  # noqa: E402
from saocli.types import Batch, Sample  # noqa: E402

ROUNDS = 5


def random_rollouts(count: int, prompt: int, response: int, vocab: int) -> tuple[Sample, ...]:
    """Their recorded log-probs are far off, but inside the band the cost is the same: eps_high is set wide."""
    draw = torch.Generator().manual_seed(0)
    ids = torch.randint(0, vocab, (count, prompt + response), generator=draw).tolist()
    return tuple(
        Sample(
            receipt=f"r{i}",
            prompt_ids=tuple(row[:prompt]),
            response_ids=tuple(row[prompt:]),
            action_mask=(1,) * response,
            rollout_logprobs=(-12.0,) * response,
            score=float(i % 2 == 0),
            temperature=1.0,
            group=f"g{i}",
            versions=("v0",),
            truncated=False,
            reported_at=0.0,
        )
        for i, row in enumerate(ids)
    )


def seconds(function: Callable[[], object]) -> float:
    """Median over a few rounds, after one to warm up."""
    function()
    times = []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        function()
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def bare_pass(folder: Path, config: TrainerConfig, samples: tuple[Sample, ...]) -> Callable[[], None]:
    """One forward and backward of Megatron's model as Megatron builds it."""
    bridge = make_bridge(read_config(folder), TORCH_DTYPE[config.dtype])
    model = GPTModel(
        config=bridge.config,
        transformer_layer_spec=get_gpt_layer_local_spec(
            normalization="RMSNorm", qk_layernorm=bridge.config.qk_layernorm
        ),
        share_embeddings_and_output_weights=bool(bridge.hf_config.tie_word_embeddings),
        **bridge._get_gptmodel_args(),
    ).to(TORCH_DTYPE[config.dtype])
    bridge.load_weights([model], str(folder), memory_efficient=True)
    ids = torch.tensor([(*sample.prompt_ids, *sample.response_ids) for sample in samples])
    mask = torch.triu(torch.ones(1, 1, ids.shape[1], ids.shape[1], dtype=torch.bool), 1)

    def run() -> None:
        for row in ids.split(config.micro_batch_size):
            model(row, None, mask, labels=row).mean().backward()

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    for name, value in (("prompt", 128), ("response", 128), ("rollouts", 1), ("threads", 1)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--skip-bare", action="store_true", help="measure the step's memory alone")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    config = TrainerConfig(critic_warmup_steps=0, dtype=DType.BF16 if args.bf16 else DType.FP32)
    set_up_ranks(config, seed=0)
    arm = ArmConfig(name="sao", eps_low=0.99999999, eps_high=1e9)
    training = build(config, arm, args.model, torch.device("cpu"), lambda text: None)
    samples = random_rollouts(args.rollouts, args.prompt, args.response, read_config(args.model).vocab_size)
    numbers = iter(range(1, 100))
    outputs = []
    step = seconds(lambda: outputs.append(train_step(training, Batch(step=next(numbers), samples=samples))))
    assert all(output.actor_trained for output in outputs), outputs[-1]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024**2
    learners = (training.actor.learner, training.critic.learner)
    # Parameters in the training dtype (and, in bf16, fp32 masters), fp32 gradients, two fp32 moments.
    per_parameter = (2 + 4 if args.bf16 else 4) + 4 + 8
    needed = sum(learner.parameters for learner in learners) * per_parameter / 1024**3
    print(
        f"step        {step:7.3f} s   {args.rollouts} × ({args.prompt} + {args.response}) tokens, {config.dtype.value}"
    )
    print(f"memory      {peak:7.2f} GiB peak, {needed:.2f} GiB of parameters, gradients, moments: ×{peak / needed:.2f}")
    if args.skip_bare:
        return
    bare = seconds(bare_pass(args.model, dataclasses.replace(config), samples)) * (1 + config.critic_updates)
    print(f"bare passes {bare:7.3f} s   step / bare = {step / bare:.3f}")


if __name__ == "__main__":
    main()
