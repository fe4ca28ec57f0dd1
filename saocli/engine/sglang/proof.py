"""Whether SGLang holds what was published: its own checksums against the folder's bytes.

SGLang's `/weights_checker` hashes each of its parameters. On a CPU that is the start of a sha256 over the parameter's
bytes. Where the folder that SGLang was started from gives the same, so must every later one: that is exact. Elsewhere
it cannot be computed here, because GPUs hash in another way, a rank holds a shard, or SGLang pads or casts: there the
parameters whose hash moved must be those whose bytes moved between the folders.

Proven so are the parameters that both know by name: all of a Llama, Qwen2 or Qwen3.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from saocli.config.trainer import DType
from saocli.engine.publish import Control
from saocli.engine.sglang.folder import BYTES
from saocli.errors import EngineError
from saocli.stored import Stored

# SGLang stacks these projections of Llama, Qwen2 and Qwen3 into one parameter, in this order.
_STACKED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
# It pads the vocabulary with rows of zeros.
_PADDED, _PADDING = ("embed_tokens.weight", "lm_head.weight"), 64
_CHUNK = 1 << 22
_DTYPES = {DType.FP32: "F32", DType.BF16: "BF16"}

Held = Mapping[str, tuple[str, ...]]  # SGLang's hash of each of its parameters, one per rank


@dataclass(frozen=True)
class Prints:
    """A folder's fingerprints by SGLang's parameter names; several where padding may be there or not."""

    by_name: Mapping[str, frozenset[str]]
    dtypes: frozenset[str]


def folder_prints(tensors: Mapping[str, Stored]) -> Prints:
    """Hash every tensor; reads each file once."""
    groups: dict[str, dict[int, Stored]] = {}
    for name, tensor in tensors.items():
        parameter, position = _parameter(name)
        groups.setdefault(parameter, {})[position] = tensor
    prints = {name: _print(name, [parts[i] for i in sorted(parts)]) for name, parts in groups.items()}
    return Prints(by_name=prints, dtypes=frozenset(tensor.dtype for tensor in tensors.values()))


async def held_prints(engine: Control) -> Held:
    """Ask for them. Raises EngineError."""
    answer = await engine.command("/weights_checker", {"action": "checksum"}, doing="asking for its weights' checksums")
    ranks: list[dict[str, Any]] = answer.get("ranks") or []
    if answer.get("success") is not True or not ranks:
        raise EngineError(f"the engine gave no checksums of its weights: {answer.get('message')}")
    names = sorted({name for rank in ranks for name in rank["checksums"]})
    return {name: tuple(rank["checksums"].get(name, "") for rank in ranks) for name in names}


def check(dtype: DType, old: Prints, new: Prints, before: Held, after: Held) -> list[str]:
    """Parameters that are not what folder `new` says, after SGLang of `dtype` went from folder `old` to it; sorted."""
    wrong = []
    for name in old.by_name.keys() & new.by_name.keys() & before.keys() & after.keys():
        if old.by_name[name].issuperset(before[name]):
            right = new.by_name[name].issuperset(after[name])
        else:
            in_folder = old.by_name[name] != new.by_name[name]
            in_engine = before[name] != after[name]
            # A move too small for SGLang's own dtype vanishes in rounding.
            right = in_engine == in_folder or (in_folder and new.dtypes != {_DTYPES[dtype]})
        if not right:
            wrong.append(name)
    return sorted(wrong)


def _parameter(name: str) -> tuple[str, int]:
    """SGLang's name of a Hugging Face tensor, and its place in that parameter."""
    for stacked, parts in _STACKED.items():
        for position, part in enumerate(parts):
            if f".{part}." in name:
                return name.replace(f".{part}.", f".{stacked}."), position
    return name, 0


def _print(name: str, parts: list[Stored]) -> frozenset[str]:
    digest = hashlib.sha256()
    for part in parts:
        with part.file.open("rb") as file:
            file.seek(part.start)
            left = part.end - part.start
            while left:
                chunk = file.read(min(left, _CHUNK))
                digest.update(chunk)
                left -= len(chunk)
    prints = {digest.hexdigest()[:16]}
    if name.endswith(_PADDED):
        (part,) = parts
        rows = math.ceil(part.shape[0] / _PADDING) * _PADDING - part.shape[0]
        digest.update(bytes(rows * part.shape[1] * BYTES[part.dtype]))
        prints.add(digest.hexdigest()[:16])
    return frozenset(prints)
