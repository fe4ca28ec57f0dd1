"""The PPO clip: closed forms, where the gradient goes, and the invariances that training rests on."""

from __future__ import annotations

import math
from typing import Any

import losskit
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from saocli.algo.dis import dis_loss
from saocli.algo.ppo import FAR, ppo_loss
from saocli.algo.ratio_stats import ratio_metrics
from saocli.algo.reduce import Tally, merge
from saocli.errors import ConfigError

BAND = {"eps_low": 0.2, "eps_high": 0.28}


def loss_and_grad(*tokens: list[Any], **options: Any) -> tuple[Tensor, Tensor, Tally]:
    return losskit.loss_and_grad(ppo_loss, *tokens, **{**BAND, **options})


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "grad"),
    [
        (1.0, 1.0, -1.0, -1.0),
        (1.0, -1.0, 1.0, 1.0),
        (1.2, 2.0, -2.4, -2.4),  # inside: −r·A, and so is its derivative in logp
        (0.9, -2.0, 1.8, 1.8),
        (1.5, 1.0, -1.28, 0.0),  # further up than the bound: nothing more to gain
        (0.5, -1.0, 0.8, 0.0),
        (0.5, 1.0, -0.5, -0.5),  # outside, but on its way back
        (1.5, -1.0, 1.5, 1.5),
        (5.0, -1.0, 5.0, 5.0),
        (1.28, 1.0, -1.28, -1.28),  # the bounds themselves are not clipped
        (0.8, -1.0, 0.8, 0.8),
        (1.5, 0.0, 0.0, 0.0),
    ],
)
def test_one_token(ratio: float, advantage: float, loss: float, grad: float) -> None:
    # A log-ratio rounds; a ratio on the bound is taken a hair inside.
    inside = -1e-12 if ratio == 1.28 else 1e-12 if ratio == 0.8 else 0.0
    got, gradient, tally = loss_and_grad([math.log(ratio) + inside], [0.0], [advantage], [1])
    assert float(got) == pytest.approx(loss, abs=1e-9)
    assert float(gradient) == pytest.approx(grad, abs=1e-9)
    clipped = grad == 0.0 and advantage != 0.0
    assert ratio_metrics(tally)["pg_clipfrac"] == float(clipped)


@settings(deadline=None)
@given(st.lists(st.tuples(st.floats(-3, 3), st.floats(-3, 3)), min_size=1, max_size=16))
def test_it_is_the_minimum_of_both_surrogates(tokens: list[tuple[float, float]]) -> None:
    gap, advantage = (list(column) for column in zip(*tokens, strict=True))
    loss, grad, _ = loss_and_grad(gap, [0.0] * len(gap), advantage, [1] * len(gap))
    leaf, a = torch.tensor(gap, dtype=torch.float64, requires_grad=True), torch.tensor(advantage, dtype=torch.float64)
    plain = -torch.min(leaf.exp() * a, leaf.exp().clamp(0.8, 1.28) * a).mean()
    plain.backward()
    assert float(loss) == pytest.approx(float(plain.detach()), abs=1e-12)
    assert leaf.grad is not None
    assert grad.tolist() == pytest.approx(leaf.grad.tolist(), abs=1e-12)


def test_nothing_but_logp_gets_a_gradient() -> None:
    parts = [torch.tensor([x], requires_grad=True) for x in (-2.0, -2.1, 1.0)]
    ppo_loss(*parts, torch.tensor([1]), denominator=1, **BAND)[0].backward()
    assert [part.grad is not None for part in parts] == [True, False, False]


def test_on_policy_it_has_the_gradient_of_dis() -> None:
    values = ([-1.0, -2.0, -0.5], [0.5, -1.0, 2.0], [1, 0, 1])
    _, grad, tally = loss_and_grad(values[0], values[0], values[1], values[2])
    leaf = torch.tensor(values[0], dtype=torch.float64, requires_grad=True)
    old, advantage, mask = (torch.tensor(column, dtype=torch.float64) for column in (values[0], values[1], values[2]))
    loss, other = dis_loss(leaf, old, advantage, mask, eps_low=0.3, eps_high=5.0, denominator=2)
    loss.backward()
    assert leaf.grad is not None
    assert torch.equal(grad, leaf.grad)
    assert other.sums.keys() == tally.sums.keys()
    assert other.maxima.keys() == tally.maxima.keys()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_extreme_gaps_are_clipped_and_finite(dtype: torch.dtype, advantage: float) -> None:
    inf = math.inf
    logp, rollout = [-1.0, -101.0, -1.0, -inf, -inf, -0.5], [-101.0, -1.0, -inf, -1.0, -inf, -0.5]
    loss, grad, tally = loss_and_grad(logp, rollout, [advantage] * 6, [1] * 6, dtype=dtype)
    assert float(loss) == pytest.approx(-advantage / 6)
    assert grad.tolist() == pytest.approx([0, 0, 0, 0, 0, -advantage / 6])
    metrics = ratio_metrics(tally)
    assert metrics["pg_clipfrac"] == pytest.approx(5 / 6)
    assert all(value is not None and math.isfinite(value) for value in metrics.values())


def test_below_the_far_limit_a_float32_gradient_is_finite() -> None:
    loss, grad, tally = loss_and_grad([FAR - 0.01, FAR + 0.01], [0.0, 0.0], [-1.0, -1.0], [1, 1], dtype=torch.float32)
    assert grad.tolist() == pytest.approx([math.exp(FAR - 0.01) / 2, 0.0], rel=1e-4)
    assert math.isfinite(loss)
    assert ratio_metrics(tally)["pg_clipfrac"] == 0.5


def test_fully_masked_batch_is_exactly_zero() -> None:
    for mask in ([1, 1], [0, 0]):
        loss, grad, tally = loss_and_grad([-100.0, -0.1], [0.0, -100.0], [1.0, 1.0], mask)
        assert float(loss) == 0.0
        assert grad.tolist() == [0.0, 0.0]
        assert float(tally.sums["kept_tokens"]) == 0.0


def test_masked_positions_leak_nothing() -> None:
    nan = math.nan
    loss, grad, tally = loss_and_grad([-1.0, nan, -2.0], [-1.1, nan, -2.0], [1.0, nan, 0.5], [1, 0, 1])
    clean = loss_and_grad([-1.0, 0.0, -2.0], [-1.1, 0.0, -2.0], [1.0, 0.0, 0.5], [1, 0, 1])
    assert float(loss) == float(clean[0])
    assert torch.equal(grad, clean[1])
    assert ratio_metrics(tally) == ratio_metrics(clean[2])


tokens = st.lists(
    st.tuples(st.floats(-8, 0), st.floats(-8, 0), st.floats(-3, 3), st.integers(0, 1)), min_size=1, max_size=24
)


@settings(deadline=None)
@given(tokens, st.integers(0, 24))
def test_any_split_gives_the_same_gradient_and_metrics(batch: list[tuple[float, float, float, int]], cut: int) -> None:
    total = sum(token[3] for token in batch)

    def run(part: list[tuple[float, float, float, int]]) -> tuple[Tensor, Tensor, Tally]:
        columns = [list(column) for column in zip(*part, strict=True)] or [[], [], [], []]
        return loss_and_grad(*columns, denominator=total)  # type: ignore[arg-type]

    whole, parts = run(batch), [run(batch[:cut]), run(batch[cut:])]
    assert torch.equal(torch.cat([part[1] for part in parts]), whole[1])
    assert float(parts[0][0] + parts[1][0]) == pytest.approx(float(whole[0]), abs=1e-9)
    assert ratio_metrics(merge(part[2] for part in parts)) == pytest.approx(ratio_metrics(whole[2]), abs=1e-9)


def test_bad_bands_and_shapes_are_refused() -> None:
    a = torch.zeros(3)
    with pytest.raises(ConfigError, match="eps_high"):
        ppo_loss(a, a, a, a, eps_low=0.2, eps_high=0.0, denominator=1)
    with pytest.raises(ValueError, match=r"rollout_logp \[1, 3\]"):
        ppo_loss(a, a[None], a, a, denominator=1, **BAND)
