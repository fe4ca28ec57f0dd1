"""Group advantages against the vectors, and what holds of any group."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from saocli.algo.grpo import group_advantages

CASES = json.loads((Path(__file__).parent / "vectors" / "grpo.json").read_text())
scores = st.lists(st.integers(-64, 64).map(lambda n: n / 8), min_size=2, max_size=16)


def f64(values: list[float]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['name']}-{case['normalize_std']}")
@pytest.mark.parametrize("dtype, tolerance", [(torch.float64, 1e-6), (torch.float32, 1e-5)])
def test_vectors(case: dict[str, Any], dtype: torch.dtype, tolerance: float) -> None:
    rewards = torch.tensor(case["rewards"], dtype=dtype)
    got = group_advantages(rewards, normalize_std=case["normalize_std"])
    assert got.dtype == torch.float64
    assert got.tolist() == pytest.approx(case["expect"], abs=tolerance)


def test_the_standard_deviation_has_n_minus_one() -> None:
    # Mean 0.25, squared deviations 3/16 + 9/16, over 3: std 0.5. Over 4 it would be 0.433, and the last one 1.73.
    got = group_advantages(f64([0.0, 0.0, 0.0, 1.0]), normalize_std=True)
    assert got.tolist() == pytest.approx([-0.25 / 0.500001] * 3 + [0.75 / 0.500001], abs=1e-12)


@pytest.mark.parametrize("normalize_std", [True, False])
@settings(deadline=None)
@given(score=st.floats(-1e6, 1e6), size=st.integers(1, 9))
def test_uniform_groups_are_exactly_zero(normalize_std: bool, score: float, size: int) -> None:
    assert group_advantages(f64([score] * size), normalize_std=normalize_std).tolist() == [0.0] * size


@pytest.mark.parametrize("normalize_std", [True, False])
@settings(deadline=None)
@given(scores, st.randoms(use_true_random=False))
def test_a_group_sums_to_zero_and_has_no_order(normalize_std: bool, group: list[float], random: Any) -> None:
    got = group_advantages(f64(group), normalize_std=normalize_std).tolist()
    assert sum(got) == pytest.approx(0.0, abs=1e-9)
    order = list(range(len(group)))
    random.shuffle(order)
    shuffled = group_advantages(f64([group[i] for i in order]), normalize_std=normalize_std).tolist()
    assert shuffled == pytest.approx([got[i] for i in order], abs=1e-9)


@settings(deadline=None)
@given(scores, st.floats(0.5, 100), st.floats(-100, 100))
def test_the_division_takes_out_the_scale_of_scores(group: list[float], scale: float, offset: float) -> None:
    plain = group_advantages(f64(group), normalize_std=True)
    moved = group_advantages(f64(group) * scale + offset, normalize_std=True)
    assert moved.tolist() == pytest.approx(plain.tolist(), abs=1e-4)
