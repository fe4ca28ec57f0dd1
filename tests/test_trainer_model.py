"""Actor and critic against transformers: the same numbers, no dropout, no trace of padding, chunks or neighbours."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from trainerkit import VOCAB, build_training, hf_logprobs, make_model, make_sample, megatron_process, reference

from saocli.config.load import load_run
from saocli.errors import TrainerError
from saocli.models.resolve import resolve
from saocli.models.tiny import build_tiny

Run = Callable[..., Any]
LENGTHS = ((6, 9), (3, 4), (8, 12))


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    with megatron_process() as run:
        yield run


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("llama"))


def samples_of(folder: Path, temperature: float = 1.0) -> list[Any]:
    model = reference(folder)
    return [
        make_sample(model, seed, prompt=prompt, response=response, temperature=temperature)
        for seed, (prompt, response) in enumerate(LENGTHS)
    ]


def actor_logprobs(folder: Path, samples: list[Any], rows: int, chunk: int, multiple: int) -> list[float]:
    """Log-probs of all action tokens, `rows` rollouts per micro-batch."""
    from saocli.trainer.megatron.bridge import make_bridge, read_config
    from saocli.trainer.megatron.data import collate
    from saocli.trainer.megatron.logprobs import token_logprobs
    from saocli.trainer.megatron.model import load_actor

    bridge = make_bridge(read_config(folder), torch.float32, vocab_multiple=multiple)
    model = load_actor(bridge, folder)
    found: list[float] = []
    for start in range(0, len(samples), rows):
        micro = collate(samples, range(start, min(start + rows, len(samples))), torch.device("cpu"))
        states = micro.states(model.hidden(micro.ids))
        weight = model.output_weight()
        assert weight.shape[0] == -(-VOCAB // multiple) * multiple
        found += token_logprobs(
            states, weight, micro.targets, micro.temperature, vocab_size=VOCAB, chunk=chunk
        ).tolist()
    return found


@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
def test_logprobs_equal_transformers(run: Run, tmp_path: Path, kind: str, tied: bool, temperature: float) -> None:
    folder = make_model(tmp_path / "m", kind, tied=tied)
    samples = samples_of(folder, temperature)
    # Vocabulary padding (multiple of 64), right padding (3 rows of different lengths) and chunking, all at once.
    found = run(actor_logprobs, folder, samples, 3, 7, 64)
    expected = [p for sample in samples for p in sample.rollout_logprobs]
    assert found == pytest.approx(expected, abs=1e-5)


def actor_logits(folder: Path, ids: torch.Tensor) -> torch.Tensor:
    """[b, s, V] of the actor, unscaled."""
    from saocli.trainer.megatron.bridge import make_bridge, read_config
    from saocli.trainer.megatron.model import load_actor

    model = load_actor(make_bridge(read_config(folder), torch.float32), folder)
    with torch.no_grad():
        return (model.hidden(ids) @ model.output_weight().T).transpose(0, 1).contiguous()


def largest_logit_gap(run: Run, folder: Path) -> float:
    """Over every token of a batch of ids and the whole vocabulary, against transformers."""
    theirs = reference(folder)
    ids = torch.randint(theirs.config.vocab_size, (2, 48), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        return float((run(actor_logits, folder, ids) - theirs(ids).logits).abs().max())


def test_logits_of_the_tiny_model_equal_transformers(run: Run, tmp_path: Path) -> None:
    build_tiny(tmp_path, 0)
    assert largest_logit_gap(run, tmp_path) <= 1e-5


@pytest.mark.slow
@pytest.mark.smollm2
def test_logits_of_smollm2_equal_transformers(run: Run) -> None:
    config = load_run("arith").config.model
    gap = largest_logit_gap(run, resolve(config, on_progress=lambda _text, _done: None))
    print(f"largest logit gap {gap:.2e}")
    assert gap <= 1e-5


@pytest.mark.parametrize("rope", ["linear", "llama3"])
def test_scaled_rotary_embeddings_equal_transformers(run: Run, tmp_path: Path, rope: str) -> None:
    scaling: dict[str, Any] = {"rope_type": rope, "rope_theta": 5000.0, "factor": 4.0}
    if rope == "llama3":
        scaling |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
    folder = make_model(tmp_path / "m", rope_parameters=scaling)
    samples = samples_of(folder)
    expected = [p for sample in samples for p in sample.rollout_logprobs]
    assert run(actor_logprobs, folder, samples, 1, 512, 1) == pytest.approx(expected, abs=1e-5)


def test_padding_of_rows_and_vocabulary_changes_nothing(run: Run, llama: Path) -> None:
    samples = samples_of(llama)
    alone = run(actor_logprobs, llama, samples, 1, 512, 1)
    padded = run(actor_logprobs, llama, samples, 3, 512, 128)
    assert padded == pytest.approx(alone, abs=1e-6)


def tied_and_untied_side_by_side(tied: Path, untied: Path, samples: list[Any]) -> tuple[list[float], list[float]]:
    """Both models loaded before either is used or exported."""
    from saocli.trainer.megatron.bridge import make_bridge, read_config
    from saocli.trainer.megatron.model import load_actor

    bridges = [make_bridge(read_config(folder), torch.float32) for folder in (tied, untied)]
    models = [load_actor(bridge, folder) for bridge, folder in zip(bridges, (tied, untied), strict=True)]
    names = [dict(bridge.export_weights([model])) for bridge, model in zip(bridges, models, strict=True)]
    return ["lm_head.weight" in exported for exported in names]


def test_two_models_in_one_process_keep_their_own_heads(run: Run, llama: Path, tmp_path: Path) -> None:
    untied = make_model(tmp_path / "untied", tied=False, seed=1)
    assert run(tied_and_untied_side_by_side, llama, untied, samples_of(llama)) == [False, True]


def dropout_and_repeatability(folder: Path) -> dict[str, Any]:
    training = build_training(folder)
    ids = torch.randint(0, VOCAB, (2, 11))
    found = {}
    for name, part in (("actor", training.actor), ("critic", training.critic)):
        model = part.learner.model.train()
        config = model.config
        found[name] = (
            config.attention_dropout,
            config.hidden_dropout,
            {m.p for m in model.modules() if isinstance(m, torch.nn.Dropout)},
            torch.equal(model.hidden(ids), model.hidden(ids)),
        )
    return found


def test_no_dropout_when_the_config_lacks_the_keys_or_asks_for_it(run: Run, tmp_path: Path) -> None:
    import json

    silent = make_model(tmp_path / "silent")
    config = json.loads((silent / "config.json").read_text())
    config.pop("attention_dropout", None)
    (silent / "config.json").write_text(json.dumps(config))
    for folder in (silent, make_model(tmp_path / "asking", attention_dropout=0.5)):
        for attention, hidden, modules, repeatable in run(dropout_and_repeatability, folder).values():
            assert (attention, hidden, repeatable) == (0.0, 0.0, True)
            assert modules <= {0.0}


def first_values(folder: Path, samples: list[Any]) -> tuple[list[float], bool]:
    from saocli.trainer.megatron.data import collate

    training = build_training(folder)
    micro = collate(samples, range(len(samples)), torch.device("cpu"))
    bodies = [part.learner.model.hidden(micro.ids) for part in (training.actor, training.critic)]
    return training.critic.values(micro).tolist(), torch.equal(*bodies)


@pytest.mark.parametrize("tied", [True, False])
def test_critic_starts_as_the_actors_body_with_value_zero(run: Run, tmp_path: Path, tied: bool) -> None:
    folder = make_model(tmp_path / "m", tied=tied)
    values, same_body = run(first_values, folder, samples_of(folder))
    assert values == [0.0] * sum(response for _, response in LENGTHS)
    assert same_body


def chunked(folder: Path, samples: list[Any], chunk: int) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Log-probs and the gradient of Σ wᵢ·logpᵢ."""
    from saocli.trainer.megatron.actor import Actor
    from saocli.trainer.megatron.data import collate

    training = build_training(folder)
    actor = Actor(training.actor.learner, head_chunk=chunk)
    logp = actor.logprobs(collate(samples, range(len(samples)), torch.device("cpu")))
    (logp * torch.linspace(-1, 1, len(logp))).sum().backward()
    return logp.detach(), {n: p.main_grad.clone() for n, p in actor.learner.model.named_parameters()}


@pytest.mark.parametrize("tied", [True, False])
def test_chunks_change_neither_logprobs_nor_gradients(run: Run, tmp_path: Path, tied: bool) -> None:
    folder = make_model(tmp_path / "m", tied=tied)
    samples = samples_of(folder)
    logp, gradient = run(chunked, folder, samples, 7)
    whole_logp, whole_gradient = run(chunked, folder, samples, 512)
    assert torch.allclose(logp, whole_logp, atol=1e-6, rtol=0)
    scale = max(float(g.abs().max()) for g in whole_gradient.values())
    for name, g in gradient.items():
        assert torch.allclose(g, whole_gradient[name], atol=1e-6 * scale, rtol=0), name


def test_gradient_equals_transformers(run: Run, llama: Path) -> None:
    samples = samples_of(llama)
    _, gradient = run(chunked, llama, samples, 7)
    model = reference(llama)
    logp = torch.cat([hf_logprobs(model, list(s.prompt_ids), list(s.response_ids), 1.0) for s in samples])
    (logp * torch.linspace(-1, 1, len(logp))).sum().backward()
    theirs = model.model.embed_tokens.weight.grad
    ours = gradient["embedding.word_embeddings.weight"]
    assert float((ours - theirs).norm() / theirs.norm()) < 1e-5


def head_memory(tokens: int, chunk: int) -> int:
    """Bytes that the head keeps between its forward and its backward pass."""
    from saocli.trainer.megatron.logprobs import token_logprobs

    vocab, width = 512, 8
    hidden, weight = torch.randn(tokens, width, requires_grad=True), torch.randn(vocab, width, requires_grad=True)
    kept: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.data_ptr()] = tensor.numel() * tensor.element_size()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        token_logprobs(
            hidden, weight, torch.zeros(tokens, dtype=torch.long), torch.ones(tokens), vocab_size=vocab, chunk=chunk
        )
    return max(kept.values(), default=0)


def test_logits_of_a_long_rollout_are_never_kept(run: Run) -> None:
    one_chunk = 32 * 512 * 4
    assert run(head_memory, 32, 32) >= one_chunk
    assert run(head_memory, 512, 32) < 2 * one_chunk
    assert run(head_memory, 2048, 32) < 2048 * 512 * 4 / 16


def refusal(folder: Path) -> tuple[str, str | None]:
    from saocli.trainer.megatron.bridge import read_config

    try:
        read_config(folder)
    except TrainerError as error:
        return error.message, error.fix
    return "", None


@pytest.mark.parametrize(
    ("kind", "overrides", "names"),
    [
        ("gpt_neox", {}, "GPTNeoXForCausalLM"),
        ("llama", {"attention_bias": True}, "attention_bias"),
        ("llama", {"mlp_bias": True}, "mlp_bias"),
        ("llama", {"hidden_act": "gelu"}, "hidden_act"),
        ("llama", {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}}, "dynamic"),
    ],
)
def test_models_that_would_be_trained_wrongly_are_refused(
    run: Run, tmp_path: Path, kind: str, overrides: dict[str, Any], names: str
) -> None:
    if kind == "gpt_neox":
        overrides = {"rope_parameters": None, "head_dim": None}
    message, fix = run(refusal, make_model(tmp_path / "m", kind, **overrides))
    assert names in message
    if kind == "gpt_neox":
        assert fix == "these work: LlamaForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM"


def test_a_folder_without_a_config_is_refused(run: Run, tmp_path: Path) -> None:
    assert "is not a Hugging Face model folder" in run(refusal, tmp_path)[0]
