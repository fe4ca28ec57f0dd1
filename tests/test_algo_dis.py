"""DIS against the vectors, closed forms and the invariances that training rests on."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import losskit
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from saocli.algo.band import check_band
from saocli.algo.dis import dis_loss, dis_weight
from saocli.algo.ratio_stats import ratio_metrics
from saocli.algo.reduce import Tally, merge
from saocli.errors import ConfigError

CASES = json.loads((Path(__file__).parent / "vectors" / "dis.json").read_text())
# float32 inputs cannot say on which side of the bound 1e-7 lies.
EDGE = ("just_inside_low", "just_outside_low")
BAND = {"eps_low": 0.3, "eps_high": 5.0}


def loss_and_grad(*tokens: list[Any], **options: Any) -> tuple[Tensor, Tensor, Tally]:
    return losskit.loss_and_grad(dis_loss, *tokens, **{**BAND, **options})


@pytest.mark.parametrize("dtype, tolerance", [(torch.float64, 1e-6), (torch.float32, 1e-5)])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_vectors(case: dict[str, Any], dtype: torch.dtype, tolerance: float) -> None:
    if dtype == torch.float32 and case["name"] in EDGE:
        pytest.skip("1e-7 inside the bound is below float32's resolution")
    expect = case["expect"]
    band = {"eps_low": case["eps_low"], "eps_high": case["eps_high"]}
    loss, grad, tally = loss_and_grad(
        case["logp"], case["rollout_logp"], case["advantage"], case["action_mask"], dtype=dtype, **band
    )
    assert float(loss) == pytest.approx(expect["loss"], abs=tolerance)
    assert grad.tolist() == pytest.approx(expect["grad"], abs=tolerance)
    assert (ratio_metrics(tally)["pg_clipfrac"] or 0.0) == pytest.approx(expect["pg_clipfrac"], abs=1e-12)
    gap = torch.tensor(case["logp"], dtype=torch.float64) - torch.tensor(case["rollout_logp"], dtype=torch.float64)
    assert dis_weight(gap, **band).tolist() == pytest.approx(expect["weight"], abs=1e-6)


def test_the_weight_is_detached() -> None:
    _, grad, _ = loss_and_grad([-2.0], [-2.0], [1.0], [1])
    assert grad.tolist() == [-1.0]  # +1 if the gradient went through the weight


def test_nothing_but_logp_gets_a_gradient() -> None:
    parts = [torch.tensor([x], requires_grad=True) for x in (-2.0, -2.1, 1.0)]
    dis_loss(*parts, torch.tensor([1]), denominator=1, **BAND)[0].backward()
    assert [part.grad is not None for part in parts] == [True, False, False]


def test_bounds_are_open_on_both_sides() -> None:
    ratios = torch.tensor([0.5, 0.7, 1.0, 5.9, 6.0, 7.0], dtype=torch.float64)
    assert dis_weight(ratios.log(), **BAND).tolist() == pytest.approx([0, 0, 1.0, 5.9, 0, 0])
    _, _, tally = loss_and_grad(ratios.log().tolist(), [0.0] * 6, [1.0] * 6, [1] * 6)
    assert ratio_metrics(tally)["pg_clipfrac"] == pytest.approx(4 / 6)
    coding = torch.tensor([0.2, 0.2001, 3.9999, 4.0], dtype=torch.float64)
    assert dis_weight(coding.log(), eps_low=0.8, eps_high=3.0).gt(0).tolist() == [False, True, True, False]


@pytest.mark.parametrize(
    "low, high", [(0.0, 5.0), (1.0, 5.0), (0.3, 0.0), (-0.1, 5.0), (math.nan, 5.0), (0.3, math.inf), (0.3, None)]
)
def test_bad_bands_are_refused(low: float, high: float) -> None:
    with pytest.raises(ConfigError, match=r"eps_(low|high)"):
        check_band(low, high)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_extreme_gaps_are_masked_and_finite(dtype: torch.dtype) -> None:
    inf = math.inf
    loss, grad, tally = loss_and_grad(
        [-1.0, -101.0, -1.0, -inf, -inf, -0.5], [-101.0, -1.0, -inf, -1.0, -inf, -0.5], [1.0] * 6, [1] * 6, dtype=dtype
    )
    assert float(loss) == pytest.approx(0.5 / 6)
    assert grad.tolist() == pytest.approx([0, 0, 0, 0, 0, -1 / 6])
    metrics = ratio_metrics(tally)
    assert metrics["pg_clipfrac"] == pytest.approx(5 / 6)
    assert all(value is not None and math.isfinite(value) for value in metrics.values())
    assert metrics["train_rollout_logprob_abs_diff_max"] == pytest.approx(100.0)


def test_fully_masked_batch_is_exactly_zero() -> None:
    for mask in ([1, 1], [0, 0]):
        loss, grad, tally = loss_and_grad([-100.0, -0.1], [0.0, -100.0], [1.0, 1.0], mask)
        assert float(loss) == 0.0
        assert grad.tolist() == [0.0, 0.0]
    assert set(ratio_metrics(tally).values()) == {None}


def test_masked_positions_leak_nothing() -> None:
    nan = math.nan
    loss, grad, tally = loss_and_grad([-1.0, nan, -2.0], [-1.1, nan, -2.0], [1.0, nan, 0.5], [1, 0, 1])
    clean = loss_and_grad([-1.0, 0.0, -2.0], [-1.1, 0.0, -2.0], [1.0, 0.0, 0.5], [1, 0, 1])
    assert float(loss) == float(clean[0])
    assert torch.equal(grad, clean[1])
    assert ratio_metrics(tally) == ratio_metrics(clean[2])


def test_token_mean_does_not_change_with_the_micro_batch() -> None:
    # Lengths 1 and 3, advantages +1 and −1; a per-micro-batch mean would give loss 0.
    logp, advantage = [-1.0] * 4, [1.0, -1.0, -1.0, -1.0]
    whole, grad, _ = loss_and_grad(logp, logp, advantage, [1] * 4)
    first = loss_and_grad(logp[:1], logp[:1], advantage[:1], [1], denominator=4)
    second = loss_and_grad(logp[1:], logp[1:], advantage[1:], [1] * 3, denominator=4)
    assert float(whole) == -0.5
    assert float(first[0] + second[0]) == -0.5
    assert torch.equal(torch.cat([first[1], second[1]]), grad)


tokens = st.lists(
    st.tuples(st.floats(-8, 0), st.floats(-8, 0), st.floats(-3, 3), st.integers(0, 1)),
    min_size=1,
    max_size=24,
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
    assert float(parts[0][0] + parts[1][0]) == pytest.approx(float(whole[0]), abs=1e-12)
    merged = ratio_metrics(merge(part[2] for part in parts))
    assert merged == pytest.approx(ratio_metrics(whole[2]), abs=1e-12)


def test_ratio_metrics_closed_form() -> None:
    _, _, tally = loss_and_grad([math.log(0.5), math.log(2.0), 0.0], [0.0, 0.0, 9.0], [1.0, 1.0, 1.0], [1, 1, 0])
    kl = (0.5 - 1 - math.log(0.5) + 2 - 1 - math.log(2)) / 2
    assert ratio_metrics(tally) == pytest.approx(
        {
            "pg_loss": -2.0 * math.log(2.0) / 2,
            "pg_clipfrac": 0.5,
            "ratio_mean": 1.25,
            "ratio_max": 2.0,
            "approx_kl": kl,
            "train_rollout_logprob_abs_diff": math.log(2.0),
            "train_rollout_logprob_abs_diff_max": math.log(2.0),
        }
    )


def test_shapes_must_agree() -> None:
    a, b = torch.zeros(3), torch.zeros(1, 3)
    with pytest.raises(ValueError, match=r"rollout_logp \[1, 3\]"):
        dis_loss(a, b, a, a, denominator=1, **BAND)
