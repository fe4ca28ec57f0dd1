"""From a name to a folder: the order of places, broken folders, interrupted builds."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from saocli.config.model import ModelConfig
from saocli.errors import ConfigError, MachineError
from saocli.models.cache import MARKER, build_once, cache_root, made_from, models_root
from saocli.models.complete import fault
from saocli.models.resolve import resolve
from saocli.models.tiny import build_tiny, origin

TINY = ModelConfig(name="tiny", builder="tiny")


def quiet(doing: str, fraction: float | None) -> None:
    assert fraction is None or 0 <= fraction <= 1, doing


@pytest.fixture(autouse=True)
def own_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAO_CACHE", str(tmp_path / "cache"))


def folder_with_tiny(folder: Path) -> Path:
    folder.mkdir(parents=True)
    build_tiny(folder, 0)
    return folder


def test_the_cache_is_where_the_environment_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert cache_root() == tmp_path / "cache"
    monkeypatch.delenv("SAO_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_root() == tmp_path / "xdg" / "sao"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_root() == Path.home() / ".cache" / "sao"


def test_a_made_model_is_made_once() -> None:
    folder = resolve(TINY, on_progress=quiet)
    assert folder == models_root() / "tiny-seed0"
    assert made_from(folder) == origin(0)
    before = (folder / "model.safetensors").stat().st_mtime_ns
    assert resolve(TINY, on_progress=quiet) == folder
    assert (folder / "model.safetensors").stat().st_mtime_ns == before
    assert resolve(ModelConfig(name="tiny", builder="tiny", seed=1), on_progress=quiet) != folder


def test_a_local_folder_wins(tmp_path: Path) -> None:
    mine = folder_with_tiny(tmp_path / "mine")
    assert resolve(ModelConfig(name="tiny", builder="tiny", path=str(mine)), on_progress=quiet) == mine
    assert not models_root().exists()


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_missing_file_is_named(tmp_path: Path, name: str) -> None:
    mine = folder_with_tiny(tmp_path / "mine")
    (mine / name).unlink()
    with pytest.raises(ConfigError) as caught:
        resolve(ModelConfig(name="x", path=str(mine)), on_progress=quiet)
    assert "model.path" in caught.value.message and f"{mine / name} is missing" in caught.value.message


def test_damage_is_seen_without_reading_weights(tmp_path: Path) -> None:
    mine = folder_with_tiny(tmp_path / "mine")
    weights = mine / "model.safetensors"
    os.truncate(weights, weights.stat().st_size - 1)
    assert "model.safetensors has" in (fault(mine) or "")
    weights.write_bytes(b"no")
    assert "no whole safetensors" in (fault(mine) or "")
    (mine / "config.json").write_text("{")
    assert "config.json is not readable" in (fault(mine) or "")
    (mine / "config.json").write_text("{}")
    (mine / "model.safetensors.index.json").write_text('{"weight_map": {"a": "part-1.safetensors"}}')
    assert fault(mine) == f"{mine / 'part-1.safetensors'} is missing"
    assert fault(tmp_path / "nothing") == f"{tmp_path / 'nothing'} is no folder"


def test_a_damaged_made_model_is_made_again() -> None:
    folder = resolve(TINY, on_progress=quiet)
    (folder / "model.safetensors").write_bytes(b"")
    assert resolve(TINY, on_progress=quiet) == folder
    assert fault(folder) is None


def test_a_model_of_an_older_maker_is_made_again() -> None:
    folder = resolve(TINY, on_progress=quiet)
    (folder / MARKER).write_text('{"builder": "tiny", "seed": 0, "format": 0}')
    resolve(TINY, on_progress=quiet)
    assert made_from(folder) == origin(0)


def test_a_folder_that_is_not_ours_is_used_when_whole_and_never_removed() -> None:
    folder = folder_with_tiny(models_root() / "tiny-seed0")
    assert resolve(TINY, on_progress=quiet) == folder
    assert not (folder / MARKER).exists()
    (folder / "config.json").unlink()
    with pytest.raises(MachineError, match="in the way") as caught:
        resolve(TINY, on_progress=quiet)
    assert "config.json is missing" in caught.value.message
    assert (folder / "model.safetensors").exists()


KILLED = """
import os
from pathlib import Path
from saocli.models.cache import build_once

def build(rough):
    (rough / "config.json").write_text("half of it")
    os.kill(os.getpid(), 9)

build_once(Path({folder!r}), {{"builder": "tiny", "seed": 0, "format": 1}}, build, on_progress=lambda *_: None)
"""


def test_a_killed_build_leaves_no_model_and_the_next_one_starts_afresh() -> None:
    folder = models_root() / "tiny-seed0"
    done = subprocess.run([sys.executable, "-c", KILLED.format(folder=str(folder))], check=False)
    assert done.returncode == -9
    assert not folder.exists()
    assert resolve(TINY, on_progress=quiet) == folder
    assert fault(folder) is None
    assert [path.name for path in models_root().iterdir() if path.is_dir()] == ["tiny-seed0"]


def _build_slowly(folder: Path, log: Path) -> None:
    def build(rough: Path) -> None:
        with log.open("a") as file:
            file.write("built\n")
        time.sleep(0.3)
        build_tiny(rough, 0)

    build_once(folder, origin(0), build, on_progress=quiet)


def test_two_processes_build_once(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    folder, log = models_root() / "tiny-seed0", tmp_path / "log"
    both = [context.Process(target=_build_slowly, args=(folder, log)) for _ in range(2)]
    for process in both:
        process.start()
    for process in both:
        process.join()
    assert [process.exitcode for process in both] == [0, 0]
    assert log.read_text() == "built\n"


def test_a_full_disk_is_named() -> None:
    def build(rough: Path) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(MachineError, match="No space left") as caught:
        build_once(models_root() / "x", {}, build, on_progress=quiet)
    assert "SAO_CACHE" in (caught.value.fix or "")


OFFLINE = """
from saocli.config.model import ModelConfig
from saocli.errors import MachineError
from saocli.models.resolve import resolve
try:
    print("found", resolve(ModelConfig(name="m", hub_id="someone/some-model"), on_progress=lambda *_: None))
except MachineError as error:
    print(error.message)
"""


def run_offline(hf_home: Path) -> str:
    env = os.environ | {"HF_HOME": str(hf_home), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run([sys.executable, "-c", OFFLINE], capture_output=True, text=True, check=True, env=env)
    return done.stdout.strip()


def test_offline_asks_the_hugging_face_cache_alone(tmp_path: Path) -> None:
    assert run_offline(tmp_path) == "the model m is not on this machine, and HF_HUB_OFFLINE is set"
    repo = tmp_path / "hub" / "models--someone--some-model"
    snapshot = folder_with_tiny(repo / "snapshots" / ("0" * 40))
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text("0" * 40)
    assert run_offline(tmp_path) == f"found {snapshot}"
    (snapshot / "model.safetensors").unlink()
    assert run_offline(tmp_path).startswith("the model m is not on this machine")


def test_wrong_names_are_refused() -> None:
    with pytest.raises(ConfigError, match="tiny, smollm2-wheel"):
        resolve(ModelConfig(name="x", builder="tinny"), on_progress=quiet)
    with pytest.raises(MachineError, match=r"model\.hub_id is not set"):
        resolve(ModelConfig(name="x"), on_progress=quiet)
    with pytest.raises(ConfigError, match=r"model\.hub_id"):
        resolve(ModelConfig(name="x", hub_id="a/b/c"), on_progress=quiet)
