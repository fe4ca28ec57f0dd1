"""Embedded engine: tokens per second at concurrency 1 and 8, streamed or not, and the time of a weight swap.

    python tests/bench/bench_engine.py [--threads N] [--tokens T] [--dtype fp32|bf16] [--smollm2]

`--smollm2` takes a random model of SmolLM2-135M's shape (538 MB in fp32) instead of 4 layers of width 128.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from pathlib import Path
from uuid import uuid4

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from saocli.config.engine import EngineConfig
from saocli.config.trainer import DType
from saocli.engine.base import Engine, GenerateRequest
from saocli.engine.embedded.launch import start_embedded
from saocli.types import Sampling

PROMPT = tuple(range(3, 61))
TINY = {"vocab_size": 512, "hidden_size": 128, "intermediate_size": 352, "num_hidden_layers": 4}
SMOLLM2 = {"vocab_size": 49152, "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30}


def make_model(folder: Path, smollm2: bool) -> None:
    heads = {"num_attention_heads": 9, "num_key_value_heads": 3} if smollm2 else {"num_attention_heads": 4}
    shape = {**(SMOLLM2 if smollm2 else TINY), **heads}
    torch.manual_seed(0)
    config = LlamaConfig(**shape, tie_word_embeddings=True, eos_token_id=None, bos_token_id=None)
    LlamaForCausalLM(config).save_pretrained(folder)


async def rate(engine: Engine, *, concurrency: int, tokens: int, stream: bool) -> float:
    """Generated tokens per second over all requests, prefill included."""

    async def one() -> int:
        sampling = Sampling(max_new_tokens=tokens)
        request = GenerateRequest(rid=str(uuid4()), prompt_ids=PROMPT, sampling=sampling, stream=stream)
        count = 0
        async for chunk in engine.generate(request):
            count = len(chunk.output_ids)
        return count

    started = time.perf_counter()
    return sum(await asyncio.gather(*(one() for _ in range(concurrency)))) / (time.perf_counter() - started)


async def main(options: argparse.Namespace, root: Path) -> None:
    folder = root / "model"
    make_model(folder, options.smollm2)
    config = EngineConfig(threads=options.threads, slots=8, dtype=DType(options.dtype))
    started = time.perf_counter()
    engine = await start_embedded(
        config, model_folder=folder, version="0", context_length=1024, seed=0, log=root / "engine.log"
    )
    print(f"start              {time.perf_counter() - started:8.2f} s")
    try:
        await rate(engine, concurrency=8, tokens=8, stream=False)
        for concurrency in (1, 8):
            for stream in (False, True):
                value = await rate(engine, concurrency=concurrency, tokens=options.tokens, stream=stream)
                print(f"concurrency {concurrency}{'  streamed' if stream else '':10} {value:8.0f} tok/s")
        for number in range(3):
            started = time.perf_counter()
            await engine.load(folder, str(number + 1))
            print(f"swap, idle         {time.perf_counter() - started:8.3f} s")
        running = asyncio.create_task(rate(engine, concurrency=8, tokens=options.tokens, stream=False))
        await asyncio.sleep(0.5)
        started = time.perf_counter()
        await engine.load(folder, "9")
        print(f"swap, 8 running    {time.perf_counter() - started:8.3f} s")
        print(f"   … 8 with a swap {await running:8.0f} tok/s")
    finally:
        await engine.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--dtype", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--smollm2", action="store_true")
    with tempfile.TemporaryDirectory() as made:
        sys.exit(asyncio.run(main(parser.parse_args(), Path(made))))
