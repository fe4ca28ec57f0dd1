"""`--fail-under`: the grammar, its refusals, and what passes."""

from __future__ import annotations

import pytest
from comparekit import arm, comparison

from saocli.compare.gates import Gate, check_gate, check_gates, parse_gate
from saocli.errors import ConfigError

LABELS = ("base", "sao", "sao#2", "grpo_dis")


def passes(count: int, of: int = 40) -> list[float]:
    return [1.0] * count + [0.0] * (of - count)


@pytest.mark.parametrize(
    ("text", "left", "operator", "right", "margin"),
    [
        ("sao>base", "sao", ">", "base", 0.0),
        (" sao >= grpo_dis ", "sao", ">=", "grpo_dis", 0.0),
        ("sao#2>base+0.05", "sao#2", ">", "base", 0.05),
        ("sao >= base + .5", "sao", ">=", "base", 0.5),
        ("sao>0.5", "sao", ">", 0.5, 0.0),
        ("sao>>base", "sao", ">>", "base", 0.0),
    ],
)
def test_the_grammar(text: str, left: str, operator: str, right: str | float, margin: float) -> None:
    assert parse_gate(text, LABELS) == Gate(text=text.strip(), left=left, operator=operator, right=right, margin=margin)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("sao", "is not a gate"),
        ("sao<base", "is not a gate"),
        ("sao>base>grpo_dis", "is not a gate"),
        ("sao>base-0.1", "no arm named 'base-0.1'"),
        ("soa>base", "no arm named 'soa'"),
        ("sao>bse", "no arm named 'bse'"),
        ("sao>nan", "no arm named 'nan'"),
        ("sao>base+much", "much is not a number"),
        ("sao>base+inf", "inf is not a number"),
        ("sao>sao", "compares sao to itself"),
        ("sao>>0.5", "between two arms"),
        ("sao>>base+0.1", "between two arms"),
    ],
)
def test_what_it_refuses(text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as refused:
        parse_gate(text, LABELS)
    if "arm named" in says or "not a gate" in says:
        assert "base · sao · sao#2 · grpo_dis" in str(refused.value)


MADE = comparison(
    arm("base", {seed: passes(20) for seed in range(3)}),  # 0.5
    arm("sao", {seed: passes(22) for seed in range(3)}),  # 0.55
    arm("grpo_dis", {seed: passes(35 + seed) for seed in range(3)}),  # 0.9
)


@pytest.mark.parametrize(
    ("text", "passed"),
    [
        ("sao>base", True),
        ("base>sao", False),
        ("sao>=sao#2", True),
        ("sao>sao#2", False),
        ("sao>=base+0.05", True),  # 0.55 ≥ 0.5 + 0.05, however the floats round
        ("sao>base+0.05", False),
        ("sao>base+0.04", True),
        ("sao>0.55", False),
        ("sao>=0.55", True),
        ("grpo_dis>>base", True),
        ("base>>grpo_dis", False),
        ("sao>>base", False),
    ],
)
def test_a_gate_is_decided_on_the_mean_reward(text: str, passed: bool) -> None:
    made = comparison(*MADE.arms, arm("sao#2", {seed: passes(22) for seed in range(3)}))
    assert check_gate(made, parse_gate(text, LABELS)).passed is passed


@pytest.mark.parametrize(("left", "right", "margin"), [(12, 8, "0.1"), (22, 20, "0.05"), (28, 24, "0.1")])
def test_equality_is_that_of_the_numbers_written(left: int, right: int, margin: str) -> None:
    # 0.3 − 0.2 − 0.1 is below 0 in floating point, 0.55 − 0.5 − 0.05 above
    made = comparison(arm("base", {0: passes(right)}), arm("sao", {0: passes(left)}))
    assert check_gate(made, parse_gate(f"sao>=base+{margin}", LABELS)).passed
    assert not check_gate(made, parse_gate(f"sao>base+{margin}", LABELS)).passed


def test_one_seed_is_above_but_never_separated() -> None:
    made = comparison(arm("base", {0: passes(2)}), arm("sao", {0: passes(38)}))
    assert check_gates(made, [parse_gate("sao>base", LABELS)]) == []
    assert check_gates(made, [parse_gate("sao>>base", LABELS)]) == [
        "sao>>base does not hold: mean reward 0.950 against 0.050, not separated"
    ]


def test_failures_carry_the_numbers() -> None:
    gates = [parse_gate(text, LABELS) for text in ("sao>base", "sao>base+0.1", "sao>0.9")]
    assert check_gates(MADE, gates) == [
        "sao>base+0.1 does not hold: mean reward 0.550 against 0.500 + 0.1",
        "sao>0.9 does not hold: mean reward 0.550 against 0.900",
    ]
