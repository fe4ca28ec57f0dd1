"""Llama, Qwen2 and Qwen3: Megatron and the embedded engine compute as transformers does; weights there and back."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from safetensors.torch import load_file
from trainerkit import QUICK, SAO, VOCAB, build_training, make_model, make_sample, megatron_process, reference

from saocli.config.trainer import DType, TrainerConfig
from saocli.engine.embedded.model import ServedModel
from saocli.engine.embedded.weights import Checkpoint
from saocli.errors import EngineError
from saocli.trainer.remote import RemoteTrainer

Run = Callable[..., Any]
PADDED = 64  # 131 words become 192 rows
LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
QWEN = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}
# An epsilon that shows where it is missing; heads that do and do not add up to the hidden size of 64, all groupings.
SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama, no groups, other head size": ("llama", {"num_key_value_heads": 4, "head_dim": 24}),
    "llama3 scaling": (
        "llama",
        {"rope_parameters": {"rope_type": "llama3", "rope_theta": 5e3, "factor": 8.0, **LLAMA3}},
    ),
    "qwen2": ("qwen2", QWEN),
    "qwen2, one group": ("qwen2", QWEN | {"num_key_value_heads": 1}),
    "qwen3": ("qwen3", QWEN | {"head_dim": 32}),
    "qwen3, six heads": ("qwen3", QWEN | {"num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 32}),
}
EVERY = [
    pytest.param(shape, tied, id=f"{shape}, {'tied' if tied else 'untied'}") for shape in SHAPES for tied in (1, 0)
]


class Found(NamedTuple):
    """What the Megatron process answers of one model."""

    logits: torch.Tensor  # [b, s, V]
    alone: list[float]  # log-probs, a rollout at a time
    padded: list[float]  # log-probs with padded rows and vocabulary
    values: set[float]
    same_body: bool


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    with megatron_process() as run:
        yield run


def model_of(folder: Path, shape: str, tied: bool, *, seed: int = 0) -> Path:
    kind, sizes = SHAPES[shape]
    make_model(folder, kind, tied=bool(tied), seed=seed, rms_norm_eps=1e-2, **sizes)
    if kind == "qwen2":
        change(folder, head_dim=None)  # as Qwen's own: they do not have the key
    return folder


def change(folder: Path, **settings: Any) -> None:
    """Set keys of config.json; None removes one."""
    path = folder / "config.json"
    config = json.loads(path.read_text()) | settings
    path.write_text(json.dumps({key: value for key, value in config.items() if value is not None}))


def in_megatron(folder: Path, ids: torch.Tensor, samples: list[Any], out: Path) -> Found:
    """Logits, log-probs with and without padding, the critic, and an export of the padded model to `out`."""
    from saocli.trainer.megatron.bridge import make_bridge, read_config
    from saocli.trainer.megatron.data import collate
    from saocli.trainer.megatron.export import export_actor
    from saocli.trainer.megatron.learner import Learner
    from saocli.trainer.megatron.logprobs import token_logprobs
    from saocli.trainer.megatron.model import load_actor

    device = torch.device("cpu")
    bridge = make_bridge(read_config(folder), torch.float32, vocab_multiple=PADDED)
    learner = Learner(load_actor(bridge, folder), bridge, QUICK)
    training = build_training(folder)
    actor, critic = training.actor.learner.model, training.critic
    micro = collate(samples, range(len(samples)), device)
    with torch.no_grad():
        logits = (actor.hidden(ids) @ actor.output_weight().T).transpose(0, 1).contiguous()
        alone = [
            p for i in range(len(samples)) for p in training.actor.logprobs(collate(samples, [i], device)).tolist()
        ]
        weight = learner.model.output_weight()
        assert weight.shape[0] % PADDED == 0
        states = micro.states(learner.model.hidden(micro.ids))
        padded = token_logprobs(states, weight, micro.targets, micro.temperature, vocab_size=VOCAB, chunk=7)
        values = set(critic.values(micro).tolist())
        same_body = torch.equal(critic.learner.model.hidden(ids), actor.hidden(ids))
    export_actor(learner, folder, out)
    return Found(logits, alone, padded.tolist(), values, same_body)


def same_bytes(one: Path, other: Path) -> bool:
    """Whether two folders hold the same tensors: names, types, shapes, bits."""
    mine, theirs = (
        {k: v for f in folder.glob("*.safetensors") for k, v in load_file(f).items()} for folder in (one, other)
    )
    return mine.keys() == theirs.keys() and all(
        mine[name].dtype == theirs[name].dtype
        and mine[name].shape == theirs[name].shape
        and torch.equal(mine[name].view(torch.uint8), theirs[name].view(torch.uint8))
        for name in mine
    )


@pytest.mark.parametrize(("shape", "tied"), EVERY)
def test_megatron_equals_transformers_and_gives_every_bit_back(
    run: Run, tmp_path: Path, shape: str, tied: bool
) -> None:
    folder, out = model_of(tmp_path / "m", shape, tied), tmp_path / "out"
    theirs = reference(folder)
    ids = torch.randint(VOCAB, (2, 64), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        logits = theirs(ids).logits
    samples = [
        make_sample(theirs, i, prompt=p, response=t, temperature=0.8)
        for i, (p, t) in enumerate([(6, 9), (8, 12), (3, 4)])
    ]
    found: Found = run(in_megatron, folder, ids, samples, out)
    assert float((found.logits - logits).abs().max()) <= 1e-5
    expected = [p for sample in samples for p in sample.rollout_logprobs]
    assert found.alone == pytest.approx(expected, abs=1e-5)
    assert found.padded == pytest.approx(expected, abs=1e-5)
    assert found.padded == pytest.approx(found.alone, abs=3e-6)
    assert found.values == {0.0}
    assert found.same_body
    assert same_bytes(folder, out)
    assert ("lm_head.weight" in load_file(out / "model.safetensors")) == (not tied)
    with torch.no_grad():
        assert torch.equal(reference(out)(ids).logits, logits)


def exported(folder: Path, config: TrainerConfig, out: Path) -> None:
    from saocli.trainer.megatron.export import export_actor

    export_actor(build_training(folder, config).actor.learner, folder, out)


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
def test_bf16_and_shards_come_back_too(run: Run, tmp_path: Path, kind: str) -> None:
    folder = make_model(tmp_path / "m", kind, tied=False)
    reference(folder).bfloat16().save_pretrained(tmp_path / "shards", max_shard_size="60KB")
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) > 1
    run(exported, tmp_path / "shards", dataclasses.replace(QUICK, dtype=DType.BF16), tmp_path / "bf16")
    assert same_bytes(tmp_path / "shards", tmp_path / "bf16")
    # Widened, every value is the same.
    run(exported, tmp_path / "shards", QUICK, tmp_path / "fp32")
    reference(tmp_path / "shards").save_pretrained(tmp_path / "wide")
    assert same_bytes(tmp_path / "wide", tmp_path / "fp32")
    assert not list((tmp_path / "fp32").glob("*.index.json"))


@pytest.mark.slow
async def test_tensor_parallel_ranks_give_qkv_biases_and_a_padded_vocabulary_back(tmp_path: Path) -> None:
    folder = model_of(tmp_path / "m", "qwen2", False)
    config = dataclasses.replace(QUICK, ranks=2, tensor_parallel=2)
    trainer = await RemoteTrainer.start(
        config=config, arm=SAO, model_folder=folder, context_length=256, seed=0, log=tmp_path / "trainer.log"
    )
    try:
        await trainer.export(tmp_path / "out")
    finally:
        await trainer.close()
    assert same_bytes(folder, tmp_path / "out")


def engine_logprobs(model: ServedModel, prompt: list[int], output: list[int]) -> torch.Tensor:
    """[T, V] of every next token, by one prefill and then token by token."""
    rows = [model.prefill(0, prompt)]
    rows += [model.decode([token], [len(prompt) + i]) for i, token in enumerate(output[:-1])]
    return torch.log_softmax(torch.cat(rows), dim=-1)


@pytest.mark.parametrize(("shape", "tied"), EVERY)
@torch.no_grad()
def test_the_embedded_engine_equals_transformers_before_and_after_a_swap(
    tmp_path: Path, shape: str, tied: bool
) -> None:
    first, second = model_of(tmp_path / "1", shape, tied), model_of(tmp_path / "2", shape, tied, seed=1)
    model = ServedModel(first, dtype=torch.float32, slots=2, context_length=256)
    tokens = torch.randint(VOCAB, (40,), generator=torch.Generator().manual_seed(0)).tolist()
    for folder in (first, second):
        if folder is second:
            Checkpoint(folder, model.module).copy_in()
            model.forget()
        theirs = torch.log_softmax(reference(folder)(torch.tensor([tokens])).logits[0, 29:39], dim=-1)
        assert float((engine_logprobs(model, tokens[:30], tokens[30:]) - theirs).abs().max()) <= 1e-5


def test_an_engine_is_swapped_to_what_megatron_exports(run: Run, tmp_path: Path) -> None:
    for kind in ("llama", "qwen2", "qwen3"):
        for tied in (True, False):
            folder = make_model(tmp_path / f"{kind}{tied}", kind, tied=tied)
            run(exported, folder, QUICK, tmp_path / f"{kind}{tied}-out")
            model = ServedModel(
                make_model(tmp_path / "x", kind, tied=tied, seed=1), dtype=torch.float32, slots=1, context_length=64
            )
            Checkpoint(tmp_path / f"{kind}{tied}-out", model.module).copy_in()
            state = reference(folder).state_dict()
            assert all(torch.equal(tensor, state[name]) for name, tensor in model.module.state_dict().items())


def test_a_head_that_a_tied_config_hides_is_not_served(tmp_path: Path) -> None:
    folder = make_model(tmp_path / "m", tied=False)
    change(folder, tie_word_embeddings=True)
    with pytest.raises(EngineError, match="ties the two"):
        ServedModel(folder, dtype=torch.float32, slots=1, context_length=64)
