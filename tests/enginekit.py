"""Tiny models on disk, engine requests and answers, and plain transformers answers to hold them against."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import uuid4

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from saocli.engine.base import Engine, GenerateChunk, GenerateRequest
from saocli.types import Sampling

EOS = 256
BC = 257
VOCAB = 258
WIDE = 264


def save_tokenizer(folder: Path, *, ends: bool = True) -> None:
    """One token per byte, `<eos>` = 256, and 257 = the two-byte token 'BC'.

    Without `ends` 256 is a token like any other: SGLang ends at the tokenizer's end token whatever the config says.
    """
    vocab = {char: byte for byte, char in enumerate(_byte_characters())} | {"<eos>": EOS, "BC": BC}
    tokenizer = Tokenizer(models.BPE(vocab, merges=[("B", "C")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    options = {"eos_token": "<eos>"} if ends else {}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **options).save_pretrained(folder)


def _byte_characters() -> list[str]:
    """The character by which byte-level BPE writes each byte: itself where printable, else the next one from 256 on."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


def llama(seed: int, *, layers: int = 2, hidden: int = 32, context: int = 2048, **options: object) -> LlamaForCausalLM:
    """A random Llama whose distribution is far from uniform, so that wrong positions or weights show."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=hidden,
        intermediate_size=hidden * 11 // 4,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=context,
        **{"eos_token_id": EOS, "bos_token_id": None, "initializer_range": 0.1, **options},
    )
    return LlamaForCausalLM(config).eval()


def save(model: LlamaForCausalLM, folder: Path) -> Path:
    model.save_pretrained(folder)
    save_tokenizer(folder, ends=model.config.eos_token_id is not None)
    return folder


def scripted(folder: Path, successors: dict[int, int]) -> Path:
    """A model that after token a is all but certain to say successors[a], whatever came before."""
    model = llama(0, hidden=WIDE, layers=1, eos_token_id=[EOS, ord("Z")])
    with torch.no_grad():
        for parameter in model.model.layers.parameters():
            parameter.zero_()
        model.model.embed_tokens.weight.copy_(torch.eye(VOCAB, WIDE))
        model.lm_head.weight.zero_()
        for before, after in successors.items():
            model.lm_head.weight[after, before] = 10.0
    return save(model, folder)


def plain_logprobs(folder: Path, prompt: tuple[int, ...], output: tuple[int, ...], temperature: float) -> list[float]:
    """Log-probs of `output` after `prompt` by one uncached transformers forward over the folder's weights."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        logits = model(torch.tensor([[*prompt, *output]])).logits[0, len(prompt) - 1 : -1]
    logp = torch.log_softmax(logits / temperature, dim=-1)
    return logp.gather(1, torch.tensor(output)[:, None])[:, 0].tolist()


def payload(ids: list[int], *, total: int | None = None, **meta: Any) -> dict[str, Any]:
    """An answer of /generate in SGLang's form, one of a stream whose tokens count `total` by now."""
    return {
        "text": "…",
        "output_ids": ids,
        "meta_info": {
            "id": "r",
            "finish_reason": None,
            "prompt_tokens": 3,
            "completion_tokens": len(ids) if total is None else total,
            "cached_tokens": 0,
            "weight_version": "v0",
            "output_token_logprobs": [[-0.5 * token, token, None] for token in ids],
            **meta,
        },
    }


def ask(prompt: tuple[int, ...], *, stream: bool = False, **sampling: Any) -> GenerateRequest:
    return GenerateRequest(rid=str(uuid4()), prompt_ids=prompt, sampling=Sampling(**sampling), stream=stream)


async def final(engine: Engine, request: GenerateRequest) -> GenerateChunk:
    """The last chunk of one generation, with what holds of every answer checked."""
    chunk = None
    async for chunk in engine.generate(request):
        assert len(chunk.output_ids) == len(chunk.logprobs)
        assert [span.start for span in chunk.spans] == [0, *(span.end for span in chunk.spans[:-1])]
    assert chunk is not None and chunk.finish_reason is not None
    assert chunk.spans[-1].end == len(chunk.output_ids) <= request.sampling.max_new_tokens
    return chunk
