"""Servers that somebody else runs: brought to the run's weights, then used like our own."""

from __future__ import annotations

from pathlib import Path

from saocli.config.engine import EngineConfig, EngineKind
from saocli.engine.client import HttpEngine
from saocli.engine.publish import load_from_disk
from saocli.engine.sglang.folder import check_fits, derived_names, stored_tensors
from saocli.engine.sglang.publisher import FromFolder, PausedPublisher
from saocli.errors import EngineError


async def attach(
    config: EngineConfig, url: str, *, key: str | None, model_folder: Path, version: str, context_length: int
) -> HttpEngine:
    """Use the server at `url`, of whatever weights: it is made to serve HF folder `model_folder` as `version` first.

    The server reads that folder, and those of later releases, under the same path as we do. It is never stopped from
    here, and not watched: one that is away refuses what it is asked meanwhile.

    Raises EngineError when it does not answer, its model is another one, or it cannot read the folder.
    """
    sglang = config.kind is EngineKind.SGLANG
    engine = HttpEngine(
        url.rstrip("/"),
        key=key,
        publisher=PausedPublisher(config, FromFolder(), folder=model_folder, version=version) if sglang else None,
        context_length=context_length if sglang else None,
    )
    try:
        if sglang:
            await _check_model(engine, model_folder)
        await load_from_disk(engine, model_folder, version)
        if (serves := await engine.version()) != version:
            raise EngineError(f"the engine at {url} was given {version} and serves {serves}")
    except BaseException:
        await engine.close()
        raise
    return engine


async def _check_model(engine: HttpEngine, model_folder: Path) -> None:
    """SGLang ends itself over a folder that does not fit: compare the two where its own can be read from here."""
    served = Path(str((await engine.info()).get("model_path")))
    if not (served / "config.json").is_file():
        return
    try:
        check_fits(model_folder, stored_tensors(model_folder), stored_tensors(served), derived_names(served))
    except EngineError as error:
        raise EngineError(
            f"the engine at {engine.url} serves another model: {error.message}", fix=f"it was started with {served}"
        ) from error
