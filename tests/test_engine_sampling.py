"""Drawing tokens: the distribution, what is recorded, truncation, penalties, stop strings."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch
from enginekit import BC, EOS, save_tokenizer
from transformers import AutoTokenizer

from saocli.engine.embedded.sampling import draw, penalised, restrict
from saocli.engine.embedded.stops import StopStrings
from saocli.types import Sampling

P = torch.tensor([0.5, 0.3, 0.15, 0.05])


def test_a_uniform_grid_reproduces_the_distribution() -> None:
    grid = [(i + 0.5) / 1000 for i in range(1000)]
    ids, logprobs = draw(P.log().repeat(1000, 1), [Sampling()] * 1000, grid)
    assert [ids.count(token) for token in range(4)] == [500, 300, 150, 50]
    assert logprobs == pytest.approx([math.log(P[token]) for token in ids], abs=1e-6)


def test_temperature_half_as_by_hand() -> None:
    ids, logprobs = draw(torch.tensor([[2.0, 0.0]] * 2), [Sampling(temperature=0.5)] * 2, [0.1, 0.99])
    assert ids == [0, 1]
    assert logprobs == pytest.approx([-0.01815, -4.01815], abs=1e-5)


def test_a_batch_may_mix_greedy_and_sampled_rows() -> None:
    logits = P.log().repeat(2, 1)
    ids, logprobs = draw(logits, [Sampling(temperature=0.0), Sampling(temperature=0.5)], [0.99, 0.99])
    assert ids[0] == 0
    assert logprobs[0] == pytest.approx(math.log(0.5), abs=1e-6)
    squares = P**2 / (P**2).sum()
    assert logprobs[1] == pytest.approx(math.log(squares[ids[1]]), abs=1e-6)


@pytest.mark.parametrize(
    ("sampling", "kept"),
    [
        (Sampling(top_p=0.8), {0, 1}),
        (Sampling(top_p=0.81), {0, 1, 2}),
        (Sampling(top_p=0.01), {0}),
        (Sampling(top_k=3), {0, 1, 2}),
        (Sampling(min_p=0.29), {0, 1, 2}),
        (Sampling(top_k=3, top_p=0.8, min_p=0.7), {0}),
    ],
)
def test_truncation_keeps_the_named_set_and_records_the_whole_distribution(sampling: Sampling, kept: set[int]) -> None:
    assert set(restrict(P, sampling).nonzero()[:, 0].tolist()) == kept
    grid = [i / 200 for i in range(200)] + [1 - 2**-53]
    ids, logprobs = draw(P.log().repeat(len(grid), 1), [sampling] * len(grid), grid)
    assert set(ids) == kept
    assert logprobs == pytest.approx([math.log(P[token]) for token in ids], abs=1e-6)


def test_masked_tokens_are_never_drawn_at_the_edges() -> None:
    logits = torch.tensor([[-math.inf, 0.0, -math.inf]] * 2)
    assert draw(logits, [Sampling()] * 2, [0.0, 1 - 2**-53])[0] == [1, 1]


def test_logits_that_are_not_numbers_are_reported_not_drawn() -> None:
    ids, logprobs = draw(torch.tensor([[math.nan] * 4, [0.0] * 4]), [Sampling()] * 2, [0.5, 0.6])
    assert math.isnan(logprobs[0])
    assert (ids[1], logprobs[1]) == (2, pytest.approx(math.log(0.25)))


def test_penalties_are_openais() -> None:
    counts = torch.tensor([0.0, 1.0, 3.0])
    sampling = Sampling(frequency_penalty=0.5, presence_penalty=0.25)
    assert penalised(torch.ones(3), counts, sampling).tolist() == [1.0, 0.25, -0.75]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> AutoTokenizer:
    folder = tmp_path_factory.mktemp("tokenizer")
    save_tokenizer(folder)
    return AutoTokenizer.from_pretrained(folder)


@pytest.mark.parametrize(
    ("stop", "tokens", "at", "match"),
    [
        (("lo w",), [*b"hello world"], 6, "lo w"),
        (("B",), [*b"xA", BC, *b"y"], 2, "B"),
        (("AB",), [*b"xA", BC], 2, "AB"),
        (("é",), [*b"caf", 0xC3, 0xA9], 4, "é"),
        (("c", "bc"), [*b"abc"], 2, "bc"),  # the earliest in the text
        ((" x",), [*b"a x"], 2, " x"),
        (("ab",), [*b"a", EOS, *b"b"], 2, "ab"),  # special tokens are not text
        (("zz",), [*b"abcabc" * 10], None, None),
    ],
)
def test_stop_strings(
    tokenizer: AutoTokenizer, stop: tuple[str, ...], tokens: list[int], at: int | None, match: str | None
) -> None:
    stops = StopStrings(stop, tokenizer)
    hits = [(place, hit) for place, token in enumerate(tokens) if (hit := stops.push(token))]
    assert hits[:1] == ([(at, match)] if match else [])


def test_watching_for_a_stop_string_decodes_a_window_only(tokenizer: AutoTokenizer) -> None:
    lengths: list[int] = []

    class Counting:
        all_special_ids: list[int] = []  # noqa: RUF012

        def decode(self, token_ids: Sequence[int], **options: bool) -> str:
            lengths.append(len(token_ids))
            return "x" * len(token_ids)

    stops = StopStrings(("never", "é" * 10), Counting())
    for _ in range(5000):
        stops.push(1)
    assert max(lengths) == 20 + 8
