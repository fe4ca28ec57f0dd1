"""Skip-observation GAE: vectors, the plain loop, masked values, credit over observations, speed."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from saocli.algo.gae import skip_observation_gae, value_targets

CASES = json.loads((Path(__file__).parent / "vectors" / "gae.json").read_text())


def gae(
    values: list[float], mask: list[int], reward: float, gamma: float = 1.0, lam: float = 1.0
) -> tuple[list[float], list[float]]:
    advantages, returns = skip_observation_gae(
        torch.tensor(values, dtype=torch.float64), torch.tensor(mask, dtype=torch.long), reward, gamma=gamma, lam=lam
    )
    return advantages.tolist(), returns.tolist()


def plain_loop(values: Tensor, mask: Tensor, reward: float, gamma: float, lam: float) -> Tensor:
    out = [0.0] * len(values)
    following = carried = 0.0
    pending = reward
    for t in range(len(values) - 1, -1, -1):
        if mask[t]:
            value = float(values[t])
            carried = pending + gamma * following - value + gamma * lam * carried
            out[t], following, pending = carried, value, 0.0
    return torch.tensor(out, dtype=torch.float64)


@pytest.mark.parametrize("dtype, tolerance", [(torch.float64, 1e-6), (torch.float32, 1e-5)])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_vectors(case: dict[str, Any], dtype: torch.dtype, tolerance: float) -> None:
    advantages, returns = skip_observation_gae(
        torch.tensor(case["values"], dtype=dtype),
        torch.tensor(case["action_mask"], dtype=torch.long),
        case["reward"],
        gamma=case["gamma"],
        lam=case["lam"],
    )
    assert advantages.tolist() == pytest.approx(case["expect"]["advantages"], abs=tolerance)
    assert returns.tolist() == pytest.approx(case["expect"]["returns"], abs=tolerance)


@pytest.mark.parametrize("junk", [100.0, math.nan, math.inf])
def test_masked_values_are_never_read(junk: float) -> None:
    # The buggy answer for 100 was [5.70, 6.00, 0]; the score belongs on the last action, not on the masked tail.
    assert gae([0.0, 0.0, junk], [1, 1, 0], 1.0, lam=0.95)[0] == pytest.approx([0.95, 1.0, 0.0])


def test_observations_neither_cut_nor_dilute_credit() -> None:
    assert gae([0.0] * 3, [1, 0, 1], 1.0, gamma=0.5)[1] == pytest.approx([0.5, 0.0, 1.0])
    assert gae([0.2, 0.3, 9, 9, 0.5], [1, 1, 0, 0, 1], 1.0, lam=0.9)[0] == pytest.approx([0.685, 0.65, 0, 0, 0.5])


def test_score_before_a_masked_tail_keeps_its_weight() -> None:
    assert gae([0.0] * 4, [1, 1, 0, 0], 1.0, lam=0.95)[0] == pytest.approx([0.95, 1.0, 0.0, 0.0])
    assert gae([0.0] * 4, [1, 1, 0, 0], 1.0, gamma=0.0)[0] == [0.0, 1.0, 0.0, 0.0]


unit = st.one_of(st.sampled_from([0.0, 0.33, 0.99999, 1.0]), st.floats(0, 1))


@settings(deadline=None)
@given(st.data())
def test_inserted_observations_leave_advantages_bit_identical(data: st.DataObject) -> None:
    n = data.draw(st.integers(1, 200))
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 2**31)))
    values = torch.randn(n, generator=generator, dtype=torch.float64)
    gamma, lam = data.draw(unit), data.draw(unit)
    dense, _ = skip_observation_gae(values, torch.ones(n), 1.0, gamma=gamma, lam=lam)
    mask = torch.zeros(2 * n, dtype=torch.bool)
    mask[torch.randperm(2 * n, generator=generator)[:n]] = True
    spread = torch.full((2 * n,), math.nan, dtype=torch.float64).masked_scatter(mask, values)
    sparse, _ = skip_observation_gae(spread, mask, 1.0, gamma=gamma, lam=lam)
    assert torch.equal(sparse[mask], dense)
    assert torch.equal(sparse[~mask], torch.zeros(n, dtype=torch.float64))


@pytest.mark.parametrize("length", [1, 63, 64, 65, 4096, 4097, 5000])
@pytest.mark.parametrize("gamma", [1.0, 0.99, 0.0])
@pytest.mark.parametrize("lam", [1.0, 0.99999, 0.95, 0.33, 0.0])
def test_fast_equals_plain(length: int, gamma: float, lam: float) -> None:
    generator = torch.Generator().manual_seed(length)
    values = torch.randn(length, generator=generator)
    mask = torch.rand(length, generator=generator) < 0.8
    fast, returns = skip_observation_gae(values, mask, -0.7, gamma=gamma, lam=lam)
    plain = plain_loop(values, mask, -0.7, gamma, lam)
    torch.testing.assert_close(fast, plain, atol=1e-9, rtol=0)
    torch.testing.assert_close(returns, torch.where(mask, plain + values.double(), 0.0), atol=1e-9, rtol=0)


def test_131072_tokens_in_milliseconds_on_one_core() -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        values, mask = torch.randn(131_072), torch.rand(131_072) < 0.9
        seconds = []
        for _ in range(15):
            start = time.perf_counter()
            fast, _ = skip_observation_gae(values, mask, 1.0, gamma=1.0, lam=0.99999)
            seconds.append(time.perf_counter() - start)
    finally:
        torch.set_num_threads(threads)
    torch.testing.assert_close(fast, plain_loop(values, mask, 1.0, 1.0, 0.99999), atol=1e-6, rtol=0)
    assert min(seconds) < 0.010


def test_critic_targets_are_the_lambda_one_returns() -> None:
    mask = [1, 0, 1, 1, 0]
    assert value_targets(torch.tensor(mask), 0.37, gamma=1.0).tolist() == [0.37, 0.0, 0.37, 0.37, 0.0]
    assert value_targets(torch.tensor(mask), 1.0, gamma=0.5).tolist() == [0.25, 0.0, 0.5, 1.0, 0.0]
    assert value_targets(torch.tensor([1, 1]), 1.0, gamma=0.0).tolist() == [0.0, 1.0]
    expected = gae([0.3, 7.0, -0.2, 1.4, 7.0], mask, 0.37, gamma=0.9)[1]
    assert value_targets(torch.tensor(mask), 0.37, gamma=0.9).tolist() == pytest.approx(expected)


def test_numbers_outside_the_unit_interval_are_refused() -> None:
    with pytest.raises(ValueError, match="lam"):
        gae([0.0], [1], 1.0, lam=1.1)
    with pytest.raises(ValueError, match="gamma"):
        gae([0.0], [1], 1.0, gamma=math.nan)
