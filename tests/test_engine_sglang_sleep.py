"""SGLang gives its memory back and takes it again: the exact requests, against a server that forgets meanwhile.

On a CPU the real one ends over `/release_memory_occupation`, so this one stands in; `test_engine_sglang.py` holds the
pauses around it to the real one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from enginekit import llama, save

from saocli.config.engine import EngineConfig, EngineKind
from saocli.config.trainer import Device
from saocli.engine.publish import FromDisk
from saocli.engine.sglang.folder import stored_tensors
from saocli.engine.sglang.publisher import FromFolder, PausedPublisher
from saocli.errors import EngineError, EngineLost

PAUSE = ("/pause_generation", {"mode": "retract"})
RELEASE = ("/release_memory_occupation", {})
RESUME = ("/resume_memory_occupation", {})
CONTINUE = ("/continue_generation", {})


@dataclass
class Server:
    """Hashes as SGLang on a GPU does: another hash than the folder's, which moves when the bytes move."""

    holds: Path | None
    calls: list[tuple[str, Mapping[str, Any]]] = field(default_factory=list)
    refuses: set[str] = field(default_factory=set)
    paused: bool = False
    asleep: bool = False

    async def command(self, path: str, body: Mapping[str, Any], *, doing: str) -> dict[str, Any]:
        if path == "/weights_checker":
            assert not self.asleep
            return {"success": True, "ranks": [{"checksums": self.checksums()}]}
        self.calls.append((path, body))
        if path in self.refuses or body.get("weight_version") in self.refuses:
            raise EngineError("out of memory")
        match path:
            case "/pause_generation":
                self.paused = True
            case "/continue_generation":
                assert self.holds is not None, "it would generate from memory that holds nothing"
                self.paused = False
            case "/release_memory_occupation":
                assert self.paused and not self.asleep, "SGLang ends itself unless it is idle"
                self.asleep, self.holds = True, None
            case "/resume_memory_occupation":
                assert self.asleep, "SGLang ends itself over memory that it has"
                self.asleep = False
            case "/update_weights_from_disk":
                assert self.paused and not self.asleep
                self.holds = Path(body["model_path"])
        return {"success": True} if path.startswith("/update") else {}

    def checksums(self) -> dict[str, str]:
        found = {}
        for name, tensor in stored_tensors(self.holds).items() if self.holds else ():
            data = tensor.file.read_bytes()[tensor.start : tensor.end]
            found[name] = hashlib.md5(data).hexdigest()
        return found


def load(folder: Path, version: str) -> tuple[str, Mapping[str, Any]]:
    body = {"model_path": str(folder), "weight_version": version, "flush_cache": True, "abort_all_requests": False}
    return "/update_weights_from_disk", body


@pytest.fixture
def folders(tmp_path: Path) -> list[Path]:
    return [save(llama(seed), tmp_path / f"v{seed}") for seed in range(2)]


@pytest.fixture
def publisher(folders: list[Path]) -> PausedPublisher:
    config = EngineConfig(kind=EngineKind.SGLANG, device=Device.GPU, colocate=True)
    return PausedPublisher(config, FromFolder(), folder=folders[0], version="v0")


async def test_sleep_and_wake_with_new_weights(publisher: PausedPublisher, folders: list[Path]) -> None:
    server = Server(folders[0])
    await publisher.sleep(server)
    await publisher.sleep(server)  # nothing for one that sleeps
    assert server.calls == [PAUSE, RELEASE]
    server.calls.clear()
    await publisher.publish(server, folders[1], "v1")
    assert server.calls == [PAUSE, RESUME, load(folders[1], "v1"), CONTINUE]
    assert (server.holds, server.paused) == (folders[1], False)
    # Awake, a publication is as ever.
    server.calls.clear()
    await publisher.publish(server, folders[0], "v2")
    assert server.calls == [PAUSE, load(folders[0], "v2"), CONTINUE]


async def test_woken_with_the_weights_that_it_had(publisher: PausedPublisher, folders: list[Path]) -> None:
    server = Server(folders[0])
    await publisher.sleep(server)
    await publisher.publish(server, folders[0], "v0")
    assert server.calls == [PAUSE, RELEASE, PAUSE, RESUME, load(folders[0], "v0"), CONTINUE]


async def test_a_broken_folder_wakes_it_with_the_old_weights(publisher: PausedPublisher, folders: list[Path]) -> None:
    server = Server(folders[0])
    await publisher.sleep(server)
    (folders[1] / "model.safetensors").write_bytes(b"\x08")
    with pytest.raises(EngineError, match="v1 was not published") as caught:
        await publisher.publish(server, folders[1], "v1")
    assert not isinstance(caught.value, EngineLost)
    assert server.calls[2:] == [PAUSE, RESUME, load(folders[0], "v0"), CONTINUE]


async def test_a_load_that_fails_wakes_it_with_the_old_weights(publisher: PausedPublisher, folders: list[Path]) -> None:
    server = Server(folders[0], refuses={"v1"})
    await publisher.sleep(server)
    with pytest.raises(EngineError, match="out of memory") as caught:
        await publisher.publish(server, folders[1], "v1")
    assert not isinstance(caught.value, EngineLost)
    assert server.calls[2:] == [PAUSE, RESUME, load(folders[1], "v1"), load(folders[0], "v0"), CONTINUE]


@pytest.mark.parametrize("path", ["/pause_generation", "/release_memory_occupation"])
async def test_an_engine_that_does_not_fall_asleep_is_lost(
    publisher: PausedPublisher, folders: list[Path], path: str
) -> None:
    with pytest.raises(EngineLost, match="did not give its memory back: out of memory"):
        await publisher.sleep(Server(folders[0], refuses={path}))


async def test_an_engine_that_gets_no_memory_is_lost(publisher: PausedPublisher, folders: list[Path]) -> None:
    server = Server(folders[0], refuses={"/resume_memory_occupation"})
    await publisher.sleep(server)
    server.holds = folders[0]  # it is ended all the same
    with pytest.raises(EngineLost, match="did not get its memory again: out of memory") as caught:
        await publisher.publish(server, folders[1], "v1")
    assert "engine.slots" in str(caught.value.fix)


async def test_the_embedded_engine_keeps_its_memory(folders: list[Path]) -> None:
    with pytest.raises(EngineError, match="keeps its memory"):
        await FromDisk().sleep(Server(folders[0]))
