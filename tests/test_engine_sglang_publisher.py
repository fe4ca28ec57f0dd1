"""Publication step by step, against a control face that says what a test tells it to: order, proof, and restoring."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from enginekit import llama, save
from safetensors.torch import load_file, save_file

from saocli.broadcast import TensorSpec, buckets, specs_of
from saocli.config.engine import EngineConfig, EngineKind, Pause
from saocli.config.trainer import Device, DType
from saocli.engine.sglang.distributed import FromGroup
from saocli.engine.sglang.folder import check_fits, derived_names, stored_tensors
from saocli.engine.sglang.proof import check, folder_prints
from saocli.engine.sglang.publisher import FromFolder, PausedPublisher
from saocli.engine.sglang.tensor import FromMemory
from saocli.errors import EngineError


def checksums(folder: Path) -> dict[str, str]:
    """What SGLang's weight checker says of a folder on the CPU, computed from its tensors by torch."""
    tensors = load_file(folder / "model.safetensors")
    layers = 1 + max(int(name.split(".")[2]) for name in tensors if ".layers." in name)
    stacked = {}
    for layer in range(layers):
        block = f"model.layers.{layer}"
        for name, parts in {"self_attn.qkv_proj": "qkv", "mlp.gate_up_proj": ("gate", "up")}.items():
            group = name.split(".")[0]
            rows = [tensors.pop(f"{block}.{group}.{part}_proj.weight") for part in parts]
            stacked[f"{block}.{name}.weight"] = torch.cat(rows)
    return {n: hashlib.sha256(t.numpy().tobytes()).hexdigest()[:16] for n, t in {**tensors, **stacked}.items()}


@dataclass
class Server:
    """A control face that holds a folder, as far as its checksums tell."""

    holds: Path
    calls: list[tuple[str, Mapping[str, Any]]] = field(default_factory=list)
    refuses: set[str] = field(default_factory=set)  # paths, or versions to load, that do not succeed
    keeps_old: bool = False  # says that it loaded, and did not
    hangs: bool = False

    async def command(self, path: str, body: Mapping[str, Any], *, doing: str) -> dict[str, Any]:
        self.calls.append((path, body))
        if path == "/weights_checker":
            return {"success": True, "ranks": [{"checksums": checksums(self.holds)}]}
        if path in self.refuses or body.get("weight_version") in self.refuses:
            return {"success": False, "message": "no room"}
        if path == "/update_weights_from_disk":
            if self.hangs:
                await asyncio.sleep(60)
            if not self.keeps_old or body["weight_version"] == "v0":
                self.holds = Path(body["model_path"])
        return {"success": True}

    def paths(self) -> list[str]:
        return [path for path, _ in self.calls if path != "/weights_checker"]


@pytest.fixture
def folders(tmp_path: Path) -> list[Path]:
    return [save(llama(seed), tmp_path / f"v{seed}") for seed in range(2)]


def publisher(folders: list[Path], **values: Any) -> PausedPublisher:
    config = EngineConfig(kind=EngineKind.SGLANG, **values)
    return PausedPublisher(config, FromFolder(), folder=folders[0], version="v0")


async def test_pause_load_prove_continue(folders: list[Path]) -> None:
    server = Server(folders[0])
    await publisher(folders).publish(server, folders[1], "v1")
    assert [path for path, _ in server.calls] == [
        "/weights_checker",  # what it holds at first
        "/pause_generation",
        "/update_weights_from_disk",
        "/weights_checker",
        "/continue_generation",
    ]
    assert server.calls[1][1] == {"mode": "retract"}
    assert server.calls[2][1] == {
        "model_path": str(folders[1]),
        "weight_version": "v1",
        "flush_cache": True,
        "abort_all_requests": False,
    }


async def test_in_place_does_not_ask_for_the_flush_that_sglang_refuses(folders: list[Path]) -> None:
    server = Server(folders[0])
    await publisher(folders, pause=Pause.IN_PLACE).publish(server, folders[1], "v1")
    assert server.calls[1][1] == {"mode": "in_place"}
    assert server.calls[2][1]["flush_cache"] is False


async def test_a_broken_folder_never_reaches_the_engine(folders: list[Path]) -> None:
    server = Server(folders[0])
    (folders[1] / "model.safetensors").write_bytes(b"\x08")
    with pytest.raises(EngineError, match="v1 was not published"):
        await publisher(folders).publish(server, folders[1], "v1")
    assert server.paths() == []


async def test_a_refused_load_is_undone_while_still_paused(folders: list[Path]) -> None:
    server = Server(folders[0], refuses={"v1"})
    with pytest.raises(EngineError, match="no room"):
        await publisher(folders).publish(server, folders[1], "v1")
    update = "/update_weights_from_disk"
    assert server.paths() == ["/pause_generation", update, update, "/continue_generation"]
    assert server.calls[3][1]["weight_version"] == "v0"


async def test_a_load_that_only_seems_to_have_happened_is_found_out(folders: list[Path]) -> None:
    server = Server(folders[0], keeps_old=True)
    with pytest.raises(EngineError, match=r"after loading v1 the engine holds other weights in lm_head\.weight"):
        await publisher(folders).publish(server, folders[1], "v1")
    assert server.holds == folders[0]


async def test_it_says_so_when_even_the_old_weights_cannot_be_loaded(folders: list[Path]) -> None:
    server = Server(folders[0], refuses={"v0", "v1"})
    with pytest.raises(EngineError, match="v0 could not be loaded again") as caught:
        await publisher(folders).publish(server, folders[1], "v1")
    assert "start it again" in str(caught.value.fix)


async def test_publication_time_is_bounded(folders: list[Path]) -> None:
    server = Server(folders[0], hangs=True)
    with pytest.raises(EngineError, match=r"publishing v1 took longer than 0\.5 s"):
        await publisher(folders, publish_timeout_s=0.5).publish(server, folders[1], "v1")
    assert server.paths()[-1] == "/continue_generation"


def test_fingerprints_are_sglangs(folders: list[Path]) -> None:
    prints = folder_prints(stored_tensors(folders[0])).by_name
    expected = checksums(folders[0])
    assert prints.keys() == expected.keys()
    assert all(value in prints[name] for name, value in expected.items())


def test_on_gpus_what_moved_in_the_folder_must_have_moved_in_the_engine(folders: list[Path]) -> None:
    old, new = (folder_prints(stored_tensors(folder)) for folder in folders)
    norms = {name for name in old.by_name if "norm" in name}  # ones in both
    before = {name: (f"a {name}", f"b {name}") for name in old.by_name}
    after = {name: pair if name in norms else (pair[0], "moved") for name, pair in before.items()}
    assert check(DType.FP32, old, new, before, after) == []
    stuck = "model.layers.0.mlp.down_proj.weight"
    assert check(DType.FP32, old, new, before, after | {stuck: before[stuck]}) == [stuck]
    assert check(DType.FP32, old, new, before, after | {"model.norm.weight": ("x", "x")}) == ["model.norm.weight"]
    # In another dtype a small move may vanish.
    assert check(DType.BF16, old, new, before, before) == []


def test_a_tied_head_may_be_there_or_not(tmp_path: Path) -> None:
    tied = save(llama(0, tie_word_embeddings=True), tmp_path / "tied")
    tensors = load_file(tied / "model.safetensors")
    assert "lm_head.weight" not in tensors
    other = tmp_path / "other"
    other.mkdir()
    head = {"lm_head.weight": tensors["model.embed_tokens.weight"].clone()}
    save_file(tensors | head, other / "model.safetensors")
    for folder, served in ((other, tied), (tied, other)):
        check_fits(folder, stored_tensors(folder), stored_tensors(served), derived_names(tied))


def test_buckets_cover_every_tensor_once_within_the_limit() -> None:
    specs = [TensorSpec(name=str(n), dtype="bfloat16", shape=(n, 10)) for n in (1, 2, 50, 3, 4)]  # 20, 40, 1000, 60, 80
    assert buckets(specs, 100) == [(0, 2), (2, 3), (3, 4), (4, 5)]
    assert buckets(specs, 10**6) == [(0, 5)]
    assert buckets([], 10) == []


@dataclass
class Sender:
    """A sender that does nothing but remember."""

    tensors: list[tuple[str, torch.Tensor]]
    done: list[object] = field(default_factory=list)
    replaced: bool = False

    def joined(self) -> bool:
        return not self.replaced

    async def listen(self) -> tuple[str, int]:
        return "127.0.0.1", 29500

    async def join(self, *, world_size: int, group: str, backend: str) -> None:
        self.done.append((world_size, backend))
        self.replaced = False

    async def specs(self) -> Sequence[TensorSpec]:
        return specs_of(self.tensors)

    async def send(self, first: int, last: int) -> None:
        self.done.append((first, last))

    async def leave(self) -> None:
        self.done.append("left")


async def test_the_group_is_joined_once_and_the_version_comes_with_the_last_bucket(folders: list[Path]) -> None:
    sender = Sender([(name, torch.zeros(100)) for name in "abc"])
    way = FromGroup(EngineConfig(device=Device.GPU, tp=2), sender, bucket_bytes=800)
    server = Server(folders[0])
    for version in ("v1", "v2"):
        await way.bring(server, folders[1], version, flush_cache=True)
    assert sender.done == [(3, "nccl"), (0, 2), (2, 3), (0, 2), (2, 3)]
    update = "/update_weights_from_distributed"
    once = ["/begin_weight_update", update, update, "/end_weight_update"]
    assert server.paths() == ["/init_weights_update_group", *once, *once]
    (group,) = [body for path, body in server.calls if path == "/init_weights_update_group"]
    where = {"master_address": "127.0.0.1", "master_port": 29500, "rank_offset": 1, "world_size": 3, "backend": "nccl"}
    assert group == where | {"group_name": group["group_name"]}
    bodies = [body for path, body in server.calls if path == update]
    assert bodies[0]["names"] == ["a", "b"]
    assert bodies[0]["dtypes"] == ["float32", "float32"]
    assert [(body["flush_cache"], body["weight_version"]) for body in bodies[:2]] == [(False, None), (True, "v1")]


async def test_a_failed_transfer_leaves_neither_group_nor_update_behind(folders: list[Path]) -> None:
    sender = Sender([("a", torch.zeros(100))])
    way = FromGroup(EngineConfig(), sender)
    server = Server(folders[0], refuses={"v1"})
    with pytest.raises(EngineError, match="no room"):
        await way.bring(server, folders[1], "v1", flush_cache=True)
    assert server.paths()[-2:] == ["/end_weight_update", "/destroy_weights_update_group"]
    assert sender.done[-1] == "left"
    server.refuses.clear()
    await way.bring(server, folders[1], "v2", flush_cache=True)
    assert server.paths().count("/init_weights_update_group") == 2


async def test_another_engine_or_another_sender_makes_another_group(folders: list[Path]) -> None:
    sender = Sender([("a", torch.zeros(100))])
    way = FromGroup(EngineConfig(), sender)
    first, second = Server(folders[0]), Server(folders[0])
    join, destroy = "/init_weights_update_group", "/destroy_weights_update_group"
    await way.bring(first, folders[1], "v1", flush_cache=True)
    await way.bring(second, folders[1], "v2", flush_cache=True)
    assert (first.paths().count(join), second.paths().count(join)) == (1, 1)
    sender.replaced = True
    await way.bring(second, folders[1], "v3", flush_cache=True)
    groups = [body["group_name"] for path, body in second.calls if path == join]
    assert len(set(groups)) == 2
    assert [body["group_name"] for path, body in second.calls if path == destroy][-1] == groups[0]
    await way.bring(second, folders[1], "v4", flush_cache=True)
    assert second.paths().count(join) == 2


@dataclass
class Sharer(Sender):
    """A sharer that remembers too."""

    async def share(self, first: int, last: int, *, readers: int) -> list[str]:
        self.done.append((first, last))
        return [f"{first}-{last} to {rank}" for rank in range(readers)]


async def test_shared_buckets_are_read_one_by_one_and_let_go_of(folders: list[Path]) -> None:
    sharer = Sharer([(name, torch.zeros(100)) for name in "abc"])
    way = FromMemory(sharer, readers=2, bucket_bytes=800)
    server = Server(folders[0])
    await way.bring(server, folders[1], "v1", flush_cache=True)
    update = "/update_weights_from_tensor"
    assert server.paths() == ["/begin_weight_update", update, update, "/end_weight_update"]
    assert [body for path, body in server.calls if path == update] == [
        {
            "serialized_named_tensors": ["0-2 to 0", "0-2 to 1"],
            "flush_cache": False,
            "weight_version": None,
        },
        {"serialized_named_tensors": ["2-3 to 0", "2-3 to 1"], "flush_cache": True, "weight_version": "v1"},
    ]
    assert sharer.done == [(0, 2), (2, 3), "left"]
    server.refuses.add("v2")
    with pytest.raises(EngineError, match="no room"):
        await way.bring(server, folders[1], "v2", flush_cache=True)
    assert server.paths()[-1] == "/end_weight_update"
    assert sharer.done[-1] == "left"
