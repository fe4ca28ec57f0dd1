"""A folder of safetensors as the next weights of a live model: checked whole first, then copied in place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from saocli.errors import EngineError

_DTYPES = {"F32", "BF16", "F16"}


class Checkpoint:
    """Weights on disk that are known to fit a model.

    Its files are mapped when it is made, so what was checked is what is copied even if the folder is removed meanwhile.
    """

    def __init__(self, folder: Path, model: nn.Module) -> None:
        """Check files, names, shapes and dtypes against `model`. Raises EngineError; the model is not touched."""
        targets, aliases = _targets(model)
        self._sources: list[tuple[Tensor, Any, str]] = []  # (live tensor, open file, its name there)
        found: set[str] = set()
        for path in _files(folder):
            try:
                file = safe_open(path, framework="pt")
            except (OSError, SafetensorError) as error:
                raise EngineError(f"{path} is not a complete safetensors file: {error}") from error
            for name in file.keys():  # noqa: SIM118 (not a dict)
                if name not in targets and name not in aliases:
                    raise EngineError(f"{path} holds {name}, which the served model does not have")
                _check(path, name, file.get_slice(name), targets.get(name, aliases.get(name)))
                if name in targets:
                    self._sources.append((targets[name], file, name))
                    found.add(name)
        missing = sorted(targets.keys() - found)
        if missing:
            raise EngineError(f"{folder} lacks {len(missing)} of the served model's tensors: {', '.join(missing[:4])}")

    @torch.no_grad()
    def copy_in(self) -> None:
        """Overwrite the model's tensors, cast to their dtype. Must not run while the model computes."""
        for target, file, name in self._sources:
            target.copy_(file.get_tensor(name))


def _targets(model: nn.Module) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The model's tensors by name, and apart the further names of tied ones (the first name is the one read)."""
    targets: dict[str, Tensor] = {}
    aliases: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, tensor in model.state_dict().items():
        (aliases if tensor.data_ptr() in seen else targets)[name] = tensor
        seen.add(tensor.data_ptr())
    return targets, aliases


def _files(folder: Path) -> list[Path]:
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        try:
            names = set(json.loads(index.read_text())["weight_map"].values())
        except (OSError, ValueError, KeyError, AttributeError) as error:
            raise EngineError(f"{index} is not a weight index: {error!r}") from error
        return [folder / name for name in sorted(names)]
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise EngineError(f"{folder} holds no safetensors")
    return files


def _check(path: Path, name: str, entry: Any, target: Tensor | None) -> None:
    if target is not None and list(entry.get_shape()) != list(target.shape):
        raise EngineError(f"{path}: {name} is {entry.get_shape()}, the served model has {list(target.shape)}")
    if entry.get_dtype() not in _DTYPES:
        raise EngineError(f"{path}: {name} is {entry.get_dtype()}, expected one of {', '.join(sorted(_DTYPES))}")
