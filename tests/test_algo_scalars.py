"""The small functions: lambda, whitening, value loss, explained variance."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from saocli.algo.explained_variance import explained_variance, rollout_moments
from saocli.algo.lambdas import length_adaptive_lambda
from saocli.algo.pooled_variance import pooled_explained_variance
from saocli.algo.reduce import merge, whiten
from saocli.algo.value_loss import value_loss, value_metrics
from saocli.errors import ConfigError

VECTORS = Path(__file__).parent / "vectors"


def vectors(name: str) -> list[dict[str, Any]]:
    return json.loads((VECTORS / f"{name}.json").read_text())


def f64(values: list[float]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize("case", vectors("lambda"), ids=str)
def test_lambda_vectors(case: dict[str, Any]) -> None:
    assert length_adaptive_lambda(case["length"], case["alpha"]) == pytest.approx(case["expect"], abs=1e-12)


def test_lambda_is_clamped_and_alpha_checked() -> None:
    assert length_adaptive_lambda(1, 0.5) == 0.0
    with pytest.raises(ConfigError, match="lambda_alpha"):
        length_adaptive_lambda(5, 0.0)


def test_whitening_covers_the_batch_and_reads_no_masked_token() -> None:
    nan = math.nan
    white = whiten([f64([1.0, nan, 2.0]), f64([nan]), f64([6.0])], [f64([1, 0, 1]), f64([0]), f64([1])])
    std = math.sqrt(7.0) + 1e-6
    assert white[0].tolist() == pytest.approx([-2 / std, 0.0, -1 / std])
    assert white[1].tolist() == [0.0]
    assert white[2].tolist() == pytest.approx([3 / std])
    assert whiten([f64([0.3])], [f64([1])])[0].tolist() == [0.0]


def critic(values: list[float], targets: list[float], mask: list[int], **more: Any) -> tuple[float, list[float], Any]:
    leaf = torch.tensor(values, dtype=torch.float64, requires_grad=True)
    loss, tally = value_loss(leaf, f64(targets), torch.tensor(mask), **more)
    loss.backward()
    assert leaf.grad is not None
    return float(loss.detach()), leaf.grad.tolist(), tally


def test_value_loss_is_a_global_token_mean() -> None:
    # Squared errors [4] and [1, 1, 1]: 7/4 over tokens, whatever the micro-batch; a mean of means gives 2.5.
    whole = critic([2.0, 1.0, 1.0, 1.0], [0.0] * 4, [1] * 4, denominator=4)
    first = critic([2.0], [0.0], [1], denominator=4)
    second = critic([1.0] * 3, [0.0] * 3, [1] * 3, denominator=4)
    assert whole[0] == first[0] + second[0] == 0.875
    assert whole[1] == first[1] + second[1] == [0.5, 0.25, 0.25, 0.25]
    assert value_metrics(merge([first[2], second[2]])) == {"critic/loss": 0.875, "critic/value_mean": 1.25}


def test_value_loss_reads_no_masked_token() -> None:
    loss, grad, tally = critic([math.nan, 0.5], [math.nan, 1.0], [0, 1], denominator=1)
    assert (loss, grad) == (0.125, [0.0, -0.5])
    loss, grad, tally = critic([1.0, 2.0], [0.0, 0.0], [0, 0], denominator=0)
    assert (loss, grad) == (0.0, [0.0, 0.0])
    assert value_metrics(tally) == {"critic/loss": None, "critic/value_mean": None}


def test_value_clip_takes_the_larger_error() -> None:
    # Past the clip towards the target: the clipped error (0.8²) counts and has no gradient. Away from it: unclipped.
    loss, grad, _ = critic([0.9, -0.5], [1.0, 1.0], [1, 1], denominator=2, old_values=f64([0.0, 0.0]), clip=0.2)
    assert loss == pytest.approx((0.5 * 0.64 + 0.5 * 2.25) / 2)
    assert grad == pytest.approx([0.0, -0.75])
    with pytest.raises(ValueError, match="old_values"):
        critic([0.0], [0.0], [1], denominator=1, clip=0.2)


@pytest.mark.parametrize("case", vectors("explained_variance"), ids=lambda case: case["name"])
def test_explained_variance_vectors(case: dict[str, Any]) -> None:
    returns, values = f64(case["returns"]), f64(case["values"])
    pooled = pooled_explained_variance([rollout_moments(returns, values, torch.ones(len(returns)))])
    for got in (explained_variance(returns, values), pooled):
        assert got == (None if case["expect"] is None else pytest.approx(case["expect"], abs=1e-9))


@settings(deadline=None)
@given(st.integers(0, 2**31), st.integers(1, 6), st.sampled_from([0.0, 1e3]))
def test_pooled_moments_equal_the_direct_computation(seed: int, rollouts: int, offset: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    drawn = [torch.randn(2, n + 20, generator=generator, dtype=torch.float64) + offset for n in range(rollouts)]
    moments = [rollout_moments(r, v, torch.ones(len(r))) for r, v in drawn]
    both = torch.cat(drawn, dim=1)
    assert pooled_explained_variance(moments) == pytest.approx(explained_variance(both[0], both[1]), rel=1e-6)


@settings(deadline=None)
@given(st.lists(st.integers(1, 300), min_size=1, max_size=8), st.floats(-1e3, 1e3))
def test_constant_returns_stay_undefined_when_pooled(lengths: list[int], score: float) -> None:
    moments = [
        rollout_moments(torch.full((n,), score, dtype=torch.float64), torch.rand(n), torch.ones(n)) for n in lengths
    ]
    assert pooled_explained_variance(moments) is None


def test_pooling_needs_two_tokens_and_skips_empty_rollouts() -> None:
    one = rollout_moments(f64([1.0]), f64([0.2]), f64([1]))
    empty = rollout_moments(f64([math.nan]), f64([math.nan]), f64([0]))
    other = rollout_moments(f64([0.0]), f64([0.2]), f64([1]))
    assert pooled_explained_variance([]) is None
    assert pooled_explained_variance([one, empty]) is None
    assert pooled_explained_variance([one, empty, other]) == pytest.approx(0.0)
