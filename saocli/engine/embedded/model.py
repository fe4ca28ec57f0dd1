"""The served model: loading it from a Hugging Face folder and running its two kinds of forward pass."""

from __future__ import annotations

import inspect
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, PreTrainedModel

from saocli.config.families import refusal
from saocli.engine.embedded.cache import SlotCache
from saocli.engine.embedded.stops import Decoder
from saocli.errors import EngineError

MIN_SHARED = 16  # tokens; copying fewer is not worth a lookup that may touch every layer's storage
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json")


class ServedModel:
    """A model of a supported family, its slots' cache, end tokens and tokenizer (None without one)."""

    def __init__(self, folder: Path, *, dtype: torch.dtype, slots: int, context_length: int) -> None:
        """Raises EngineError for a folder that does not hold a complete model that fits `context_length`."""
        try:
            if wrong := refusal(json.loads((folder / "config.json").read_text())):
                raise EngineError(f"{folder}: {wrong.message}", fix=wrong.fix)
            module, info = AutoModelForCausalLM.from_pretrained(
                folder, dtype=dtype, attn_implementation="sdpa", local_files_only=True, output_loading_info=True
            )
        except (OSError, ValueError, KeyError, RuntimeError) as error:
            raise EngineError(f"no model could be loaded from {folder}: {error}") from error
        faults = {kind: sorted(map(str, names)) for kind, names in info.items() if names and kind != "error_msgs"}
        if faults:
            raise EngineError(f"the weights in {folder} do not fit its config.json: {faults}")
        self.module: PreTrainedModel = module.eval()
        config = module.config
        self.vocab_size: int = config.vocab_size
        self.context_length = context_length
        if context_length > getattr(config, "max_position_embeddings", context_length):
            raise EngineError(
                f"context_length {context_length} exceeds max_position_embeddings {config.max_position_embeddings}"
            )
        tied = module.get_output_embeddings().weight is module.get_input_embeddings().weight
        if config.tie_word_embeddings and not tied:
            raise EngineError(
                f"{folder} has an lm_head that differs from its embeddings, but its config.json ties the two",
                fix="set tie_word_embeddings to false there",
            )
        for parameter in module.parameters():
            # The loader may map the file itself, which an in-place swap must not write to.
            parameter.data = parameter.data.clone()
        self.eos_ids = _eos_ids(folder, config)
        self.tokenizer: Decoder | None = None
        if any((folder / name).is_file() for name in _TOKENIZER_FILES):
            self.tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        self._cache = SlotCache(slots=slots, limit=context_length)
        self._held: list[list[int]] = [[] for _ in range(slots)]  # per row: tokens whose keys and values it has
        # Renamed in transformers 5.24.
        self._cache_name = "cache" if "cache" in inspect.signature(module.forward).parameters else "past_key_values"

    def prefill(self, row: int, tokens: Sequence[int]) -> Tensor:
        """Fill `row` with `tokens`; returns the next token's logits [1, V] in fp32.

        A beginning that some row already holds, as prompts with the same worked examples do, is copied, not computed.
        """
        source, start = max(((r, _shared(held, tokens)) for r, held in enumerate(self._held)), key=lambda pair: pair[1])
        if start < MIN_SHARED:
            start = 0
        elif source != row:
            self.move(source, row, start)
        length = len(tokens)
        self._cache.begin_prefill(row, start, length)
        self._held[row] = list(tokens)
        positions = torch.arange(start, length)
        mask = torch.arange(length) <= positions[:, None]
        return self._forward(torch.tensor([tokens[start:]]), positions[None], mask[None, None])

    def decode(self, tokens: Sequence[int], positions: Sequence[int]) -> Tensor:
        """Add one token to each of rows [0, n) at its own position; returns the next tokens' logits [n, V] in fp32."""
        for row, (token, position) in enumerate(zip(tokens, positions, strict=True)):
            self._held[row][position:] = [token]
        places = torch.tensor(positions)
        length = self._cache.begin_decode(places)
        mask = torch.arange(length) <= places[:, None]
        return self._forward(torch.tensor(tokens)[:, None], places[:, None], mask[:, None, None])

    def move(self, source: int, target: int, length: int) -> None:
        """Let row `target` hold what row `source` holds."""
        self._cache.move(source, target, length)
        self._held[target] = self._held[source][:length]

    def forget(self) -> None:
        """The weights have changed: no row holds anything of theirs."""
        self._held = [[] for _ in self._held]

    def _forward(self, ids: Tensor, positions: Tensor, mask: Tensor) -> Tensor:
        cache: dict[str, Any] = {self._cache_name: self._cache}
        output = self.module(input_ids=ids, position_ids=positions, attention_mask=mask, logits_to_keep=1, **cache)
        return output.logits[:, -1].float()


def _shared(held: Sequence[int], tokens: Sequence[int]) -> int:
    """How many tokens both begin with; the last of `tokens` is left out, since its logits are wanted."""
    count = 0
    for ours, theirs in zip(held, tokens[:-1], strict=False):
        if ours != theirs:
            break
        count += 1
    return count


def _eos_ids(folder: Path, config: Any) -> frozenset[int]:
    """End tokens of config.json and generation_config.json together; either may give one id, a list or none."""
    given = [config.eos_token_id]
    if (folder / "generation_config.json").is_file():
        given.append(GenerationConfig.from_pretrained(folder).eos_token_id)
    return frozenset(token for ids in given if ids is not None for token in (ids if isinstance(ids, list) else [ids]))
