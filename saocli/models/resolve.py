"""From a model's name to a local Hugging Face folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from saocli.config.model import ModelConfig
from saocli.errors import ConfigError, MachineError
from saocli.models.cache import Progress, build_once, made_from, models_root
from saocli.models.complete import fault
from saocli.models.hub import from_hf_cache, from_hub
from saocli.models.supported import require_supported


def resolve(config: ModelConfig, *, on_progress: Progress) -> Path:
    """The folder of the model: `model.path`, else our cache, the Hugging Face cache, the hub, and last `model.builder`.

    So the first place that has it gives the same model on every later run, offline too. `on_progress` is told each slow
    phase and, where it is known, the fraction done. Raises ConfigError for a conf that names nothing usable or a model
    that cannot be trained, and MachineError when no place has the model; both say which file is missing, or why, and
    what to do.
    """
    folder = _find(config, on_progress)
    require_supported(folder, key=_chosen_by(config))
    return folder


def present(config: ModelConfig) -> Path | None:
    """The model's complete folder if this machine has it: `model.path`, our cache, the Hugging Face cache.

    Fetches and makes nothing. Raises ConfigError for a `model.path` that is no model.
    """
    if config.path is not None:
        folder = Path(config.path).expanduser()
        if wrong := fault(folder):
            raise ConfigError(
                f"model.path={config.path}: {wrong}", fix="point it at a complete Hugging Face model folder"
            )
        return folder.resolve()
    builder, made = _builder(config), _cache_folder(config)
    if fault(made) is None and (builder is None or made_from(made) in (None, builder[0])):
        return made
    return from_hf_cache(config.hub_id) if config.hub_id is not None else None


def _find(config: ModelConfig, on_progress: Progress) -> Path:
    """The complete folder, of whatever model it is."""
    if here := present(config):
        return here
    builder, made = _builder(config), _cache_folder(config)
    why = "model.hub_id is not set"
    if config.hub_id is not None:
        found = from_hub(
            config.hub_id,
            accept=lambda folder: require_supported(folder, key=_chosen_by(config)),
            on_progress=on_progress,
        )
        if isinstance(found, Path):
            return found
        why = found
    if builder is None:
        raise MachineError(
            f"the model {config.name} is not on this machine, and {why}",
            fix=f"connect once to fetch it, put its files into {made}, or set model.path",
        )
    origin, build = builder
    if config.hub_id is not None:
        on_progress(f"{why}; making {config.name} here", None)
    return build_once(made, origin, lambda rough: build(rough, on_progress), on_progress=on_progress)


def _chosen_by(config: ModelConfig) -> str:
    """The key that says which model it is, with its value."""
    for key in ("path", "hub_id"):
        if value := getattr(config, key):
            return f"model.{key}={value}"
    return f"model.name={config.name}"


def _cache_folder(config: ModelConfig) -> Path:
    """Where our cache has this model; one made from a seed has the seed in its name."""
    name = config.name.replace("/", "--")
    return models_root() / (f"{name}-seed{config.seed}" if config.builder == "tiny" else name)


def _builder(config: ModelConfig) -> tuple[dict[str, Any], Callable[[Path, Progress], None]] | None:
    """What the marker of the made model says and how it is made; None when the conf names no builder."""
    match config.builder:
        case None:
            return None
        case "tiny":
            from saocli.models import tiny

            return tiny.origin(config.seed), lambda folder, _: tiny.build_tiny(folder, config.seed)
        case "smollm2-wheel":
            from saocli.models import smollm2

            return smollm2.ORIGIN, lambda folder, report: smollm2.build_smollm2(folder, on_progress=report)
    raise ConfigError(f"model.builder={config.builder} is not known", fix="one of tiny, smollm2-wheel")
