"""How new weights reach an engine that serves: one Protocol, whatever the way."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from saocli.errors import EngineError


class Control(Protocol):
    """An engine's control routes."""

    async def command(self, path: str, body: Mapping[str, Any], *, doing: str) -> dict[str, Any]:
        """POST `body`; returns the decoded answer, a refused `{"success": false}` included. Raises EngineError."""
        ...


class Publisher(Protocol):
    """Makes an engine serve other weights."""

    async def publish(self, engine: Control, folder: Path, version: str) -> None:
        """Returns once the weights in HF folder `folder` serve as `version`; running requests go on with them.

        Raises EngineError if they do not: then the weights that served before serve on.
        """
        ...

    async def sleep(self, engine: Control) -> None:
        """Have the engine give its GPU memory back; whatever is asked of it waits for the next `publish`.

        Raises EngineError.
        """
        ...


async def load_from_disk(engine: Control, folder: Path, version: str, *, flush_cache: bool = True) -> None:
    """Have the engine read the safetensors in `folder`. Raises EngineError when it says that it could not."""
    body = {
        "model_path": str(folder.resolve()),
        "weight_version": version,
        "flush_cache": flush_cache,
        "abort_all_requests": False,
    }
    answer = await engine.command("/update_weights_from_disk", body, doing=f"loading weights {version}")
    if answer.get("success") is not True:
        raise EngineError(
            f"the engine could not load {version} from {folder}: {answer.get('message')}",
            fix="the previous weights serve on; check the folder's safetensors",
        )


class FromDisk:
    """For an engine that checks a folder whole, and swaps between two decode steps, by itself."""

    async def publish(self, engine: Control, folder: Path, version: str) -> None:
        await load_from_disk(engine, folder, version)

    async def sleep(self, engine: Control) -> None:
        raise EngineError("this engine keeps its memory", fix="only SGLang gives it back: engine.colocate=false")
