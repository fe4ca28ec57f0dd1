"""Models that would not be trained faithfully: named, and refused before anything is fetched, loaded or started."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch
from runkit import THREADS, sao
from trainerkit import megatron_process

from saocli.config.families import FAMILIES, refusal
from saocli.config.model import ModelConfig
from saocli.engine.embedded.model import ServedModel
from saocli.errors import ConfigError, EngineError, TrainerError
from saocli.models.resolve import resolve
from saocli.models.tiny import build_tiny

Run = Callable[..., Any]
LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}

LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "rope_theta": 1e4}
QWEN2 = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "sliding_window": 4096,
    "use_sliding_window": False,
}
QWEN3 = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "attention_bias": False}
OTHERS = [
    "GPT2LMHeadModel", "MambaForCausalLM", "MistralForCausalLM", "MixtralForCausalLM", "Qwen2MoeForCausalLM",
    "Qwen3MoeForCausalLM", "LlamaForSequenceClassification", "Qwen2_5_VLForConditionalGeneration",
]  # fmt: skip
SETTINGS = [
    (LLAMA, {"attention_bias": True}, "attention_bias=True"),
    (LLAMA, {"mlp_bias": True}, "mlp_bias=True"),
    (LLAMA, {"hidden_act": "gelu"}, "hidden_act=gelu"),
    (LLAMA, {"model_type": "mistral"}, "model_type=mistral"),
    (LLAMA, {"quantization_config": {"quant_method": "awq"}}, "quantization_config="),
    (LLAMA, {"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rope_scaling.rope_type=dynamic"),
    (LLAMA, {"rope_scaling": {"type": "llama3", "factor": 8.0, **LLAMA3, "low_freq_factor": 2}}, "low_freq_factor=2"),
    (LLAMA, {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "rope_scaling.high_freq_factor=None"),
    (LLAMA, {"rope_parameters": {"rope_type": "llama3", "rope_theta": 1e4, **LLAMA3}}, "rope_parameters.factor=None"),
    (LLAMA, {"rope_scaling": {"type": "linear"}}, "rope_scaling.factor=None"),
    (LLAMA, {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}}, "s.partial_rotary_factor=0.5"),
    (LLAMA, {"partial_rotary_factor": 0.5}, "partial_rotary_factor=0.5"),
    (QWEN2, {"use_sliding_window": True}, "use_sliding_window=True"),
    (QWEN2, {"layer_types": ["full_attention", "sliding_attention"]}, "layer_types=sliding_attention"),
    (QWEN2, {"rope_scaling": {"type": "yarn", "factor": 4.0}}, "rope_scaling.rope_type=yarn"),
    (QWEN2, {"rope_parameters": {"full_attention": {"rope_type": "yarn"}}}, "rope_parameters.full_attention="),
    (QWEN3, {"attention_bias": True}, "attention_bias=True"),
    (QWEN3, {"use_sliding_window": True}, "use_sliding_window=True"),
]  # fmt: skip


@pytest.mark.parametrize("architecture", [*OTHERS, None])
def test_another_architecture_is_refused_with_the_list_of_those_that_work(architecture: str | None) -> None:
    wrong = refusal({"architectures": architecture and [architecture], "model_type": "llama"})
    assert wrong is not None
    assert f"{architecture or 'an unnamed architecture'} cannot be trained" in wrong.message
    assert wrong.fix == "these work: LlamaForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM"


@pytest.mark.parametrize(("base", "setting", "named"), SETTINGS, ids=[named for _, _, named in SETTINGS])
def test_an_unsupported_setting_is_named(base: dict[str, Any], setting: dict[str, Any], named: str) -> None:
    assert refusal(base) is None
    wrong = refusal(base | setting)
    assert wrong is not None
    assert base["architectures"][0] in wrong.message
    assert named in wrong.message


def test_what_works_is_let_through_in_both_notations() -> None:
    for scaling in ({"type": "linear", "factor": 2.0}, {"rope_type": "llama3", "factor": 32.0, **LLAMA3}, None):
        assert refusal(LLAMA | {"rope_scaling": scaling}) is None
    assert refusal(QWEN3 | {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}) is None


def tiny_but(folder: Path, **settings: Any) -> Path:
    """The complete tiny model, its config.json changed."""
    folder.mkdir(parents=True, exist_ok=True)
    build_tiny(folder, 0)
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))
    return folder


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    with megatron_process() as run:
        yield run


def refusal_in_the_trainer(folder: Path) -> str:
    from saocli.trainer.megatron.bridge import BRIDGES, read_config

    assert BRIDGES.keys() == FAMILIES.keys()
    try:
        read_config(folder)
    except TrainerError as error:
        return error.message
    return ""


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"architectures": ["MambaForCausalLM"], "model_type": "mamba"}, "MambaForCausalLM"),
        ({"architectures": ["SomethingNewForCausalLM"], "model_type": "something-new"}, "SomethingNewForCausalLM"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "rope_scaling.rope_type=yarn"),
    ],
)
def test_trainer_and_engine_refuse_as_well(run: Run, tmp_path: Path, settings: dict[str, Any], named: str) -> None:
    tiny_but(tmp_path, **settings)
    assert named in run(refusal_in_the_trainer, tmp_path)
    with pytest.raises(EngineError, match=named):
        ServedModel(tmp_path, dtype=torch.float32, slots=1, context_length=64)


def test_the_conf_is_refused_when_the_model_is_resolved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAO_CACHE", str(tmp_path / "cache"))
    folder = tiny_but(tmp_path / "cache" / "models" / "mine", mlp_bias=True)
    for config, key in (
        (ModelConfig(name="mine"), "model.name=mine"),
        (ModelConfig(name="x", path=str(folder)), f"model.path={folder}"),
    ):
        with pytest.raises(ConfigError) as caught:
            resolve(config, on_progress=lambda _text, _done: None)
        assert caught.value.message == f"{key}: LlamaForCausalLM with mlp_bias=True cannot be trained"


@contextmanager
def hub_with(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """A hub that has one model, and the names of the files that were fetched from it."""
    fetched: list[str] = []
    commit = "0" * 40
    sizes = {path.name: path.stat().st_size for path in sorted(folder.iterdir())}
    info = {"id": "o/m", "sha": commit, "siblings": [{"rfilename": name} for name in sizes]}
    tree = [{"type": "file", "path": name, "size": size, "oid": commit} for name, size in sizes.items()]

    class Hub(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.answer(body=False)

        def do_GET(self) -> None:
            self.answer(body=True)

        def answer(self, *, body: bool) -> None:
            name = self.path.partition("?")[0].rpartition("/")[2]
            if "/resolve/" in self.path:
                data = (folder / name).read_bytes()
                fetched.extend([name] if body else [])
            else:
                data = json.dumps(tree if "/tree/" in self.path else info).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.send_header("X-Repo-Commit", commit)
            self.send_header("ETag", f'"{name}"')
            self.end_headers()
            if body:
                self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", fetched
        server.shutdown()


FROM_HUB = """
from saocli.config.model import ModelConfig
from saocli.errors import ConfigError
from saocli.models.resolve import resolve
try:
    print("found", resolve(ModelConfig(name="m", hub_id="o/m"), on_progress=lambda *_: None))
except ConfigError as error:
    print(error.message)
"""


@pytest.mark.parametrize("works", [True, False])
def test_of_a_model_on_the_hub_the_config_is_fetched_first(tmp_path: Path, works: bool) -> None:
    folder = tiny_but(tmp_path / "m", mlp_bias=not works)
    with hub_with(folder) as (url, fetched):
        env = os.environ | {"HF_ENDPOINT": url, "HF_HOME": str(tmp_path / "hf"), "SAO_CACHE": str(tmp_path / "cache")}
        env |= {"HF_HUB_DISABLE_XET": "1", "NO_PROXY": "127.0.0.1", "HF_HUB_OFFLINE": "0"}
        done = subprocess.run([sys.executable, "-c", FROM_HUB], stdout=subprocess.PIPE, text=True, check=True, env=env)
    if works:
        assert done.stdout.startswith("found"), done.stdout
        assert set(fetched) == {path.name for path in folder.iterdir()}
    else:
        assert done.stdout == "model.hub_id=o/m: LlamaForCausalLM with mlp_bias=True cannot be trained\n"
        assert fetched == ["config.json"]


def test_serve_refuses_before_it_starts_anything(tmp_path: Path) -> None:
    folder = tiny_but(tmp_path / "gpt2", architectures=["GPT2LMHeadModel"], model_type="gpt2")
    done = sao("serve", "conf=cpu_smoke", *THREADS, "gateway.port=0", f"model.path={folder}", cwd=tmp_path)
    assert done.returncode == 2
    assert "GPT2LMHeadModel cannot be trained" in done.stderr
    assert "these work: LlamaForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM" in done.stderr
    assert not list(tmp_path.rglob("*.log"))
