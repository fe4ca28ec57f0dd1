"""A model by its hub id: from the Hugging Face cache, else from the hub if that can be reached at all."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from saocli.errors import ConfigError
from saocli.models.cache import Progress
from saocli.models.complete import fault

PROBE_TIMEOUT_S = 3.0
CONFIG = "config.json"
FILES = ["*.json", "*.safetensors", "*.jinja", "*.model", "merges.txt"]


def from_hf_cache(hub_id: str) -> Path | None:
    """The complete snapshot in the Hugging Face cache, or None."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        folder = Path(snapshot_download(hub_id, local_files_only=True, allow_patterns=FILES))
    except LocalEntryNotFoundError:
        return None
    except HFValidationError as error:
        raise ConfigError(f"model.hub_id={hub_id} is no hub id: {error}") from error
    return folder if fault(folder) is None else None


def from_hub(hub_id: str, *, accept: Callable[[Path], None], on_progress: Progress) -> Path | str:
    """Download into the Hugging Face cache; the folder, or in words why the hub did not give it.

    `accept` sees the folder when it holds config.json and nothing large yet, and raises what must end it there. Asks
    nothing of the network when Hugging Face is told to be offline (`HF_HUB_OFFLINE`), and gives up after a few seconds
    when the hub does not answer.
    """
    from huggingface_hub import HfApi, constants, snapshot_download
    from huggingface_hub.errors import GatedRepoError, HTTPError, RepositoryNotFoundError
    from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    if constants.HF_HUB_OFFLINE:
        return "HF_HUB_OFFLINE is set"
    on_progress(f"looking for {hub_id} on the hub", None)
    shown = not are_progress_bars_disabled()
    disable_progress_bars()
    try:
        HfApi().model_info(hub_id, timeout=PROBE_TIMEOUT_S)
        folder = Path(snapshot_download(hub_id, allow_patterns=[CONFIG], etag_timeout=PROBE_TIMEOUT_S))
        if not (folder / CONFIG).is_file():
            return f"{hub_id} on the hub has no {CONFIG}"
        accept(folder)
        on_progress(f"fetching {hub_id} from the hub", None)
        folder = Path(snapshot_download(hub_id, allow_patterns=FILES, etag_timeout=PROBE_TIMEOUT_S))
    except (RepositoryNotFoundError, GatedRepoError) as error:
        return f"the hub does not give {hub_id}: {_first_line(error)}"
    except (HTTPError, OSError) as error:
        return f"the hub cannot be reached: {_first_line(error)}"
    finally:
        if shown:
            enable_progress_bars()
    return fault(folder) or folder


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
