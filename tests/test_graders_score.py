"""What the graders call right and wrong."""

from __future__ import annotations

from typing import Any

import pytest

from saocli.config.tasks import TasksConfig, TaskSource
from saocli.tasks.graders.boxed import grade_boxed, last_boxed
from saocli.tasks.graders.exact import grade_exact
from saocli.tasks.graders.gym import grade_gym
from saocli.tasks.graders.letters import grade_letters
from saocli.tasks.graders.math import grade_math
from saocli.tasks.sets import load_tasks
from saocli.types import Problem


def problem(answer: str, **source: Any) -> Problem:
    return Problem(id="p", messages=(), answer=answer, grader="boxed", source=source)


@pytest.mark.parametrize(
    ("text", "content"),
    [
        (r"so \boxed{7}.", "7"),
        (r"\boxed{1} no, \boxed{2}", "2"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{\}}", r"\}"),
        (r"\boxed{}", ""),
        (r"\boxed{1} then \boxed{2", None),
        ("the answer is 7", None),
        (r"\boxed{\boxed{5}}", "5"),
    ],
)
def test_the_last_balanced_box_counts(text: str, content: str | None) -> None:
    assert last_boxed(text) == content


@pytest.mark.parametrize(
    ("text", "score"),
    [
        (r"\boxed{12}", 1),
        (r"\boxed{ 12 }", 1),
        (r"\boxed{$12$}", 1),
        ("12", 0),
        (r"\boxed{13}", 0),
        (r"\boxed{12 apples}", 0),
    ],
)
def test_boxed_compares_text(text: str, score: float) -> None:
    assert grade_boxed(problem("12"), text) == score


def test_exact_takes_the_whole_reply() -> None:
    assert [grade_exact(problem("yes"), text) for text in (" yes\n", "yes.", "Yes")] == [1, 0, 0]


def test_letters_is_the_share_of_eight_characters() -> None:
    replies = (
        "abcabcab",
        "abcabcabzzzz",
        "abcabcxx",
        "aaaa",
        "",
        "zzzzzzzzabc",
        "a\ufffd\ufffd\ufffd\ufffd\ufffd\ufffd\ufffd",
    )
    assert [grade_letters(problem("abc"), text) for text in replies] == [1, 1, 0.75, 0.5, 0, 0, 0.125]


EQUAL = [
    (r"\frac{1}{2}", "0.5"),
    (r"\frac{1}{2}", r"\frac12"),
    (r"\frac{1}{2}", "1/2"),
    (r"\frac{1}{2}", r"T = \frac{1}{2}"),
    (r"$\frac{1}{2}$.", r"\frac{2}{4}"),
    ("2^{u-2}", r"\frac{2^u}{4}"),
    ("2^{u-2}", "2^{u}/4"),
    (r"-\frac{2023}{2024^2}", "-2023/4096576"),
    (r"-\frac{2023}{2024^2}", r"\frac{1}{2024^2}-\frac{1}{2024}"),
    (r"\frac{1}{10}", "0.1"),
    (r"\frac{3}{10}", "0.1+0.2"),
    ("12", "12.0"),
    ("1000", "1,000"),
    (r"2\sqrt{2}", r"\sqrt{8}"),
    ("1,2", "2,1"),
]
DIFFERENT = [
    (r"\frac{1}{2}", "0.5000001"),
    (r"\frac{1}{3}", "0.3333333333333333"),
    (r"-\frac{2023}{2024^2}", "-0.000493827"),
    (r"-\frac{2023}{2024^2}", r"\frac{2023}{2024^2}"),
    ("2^{u-2}", "2^{v-2}"),
    ("12", "12 apples"),
    ("12", r"12\text{ apples}"),
    ("12", "12 m"),
    ("12", "12 or 13"),
    ("12", "12, 13"),
    ("50", r"50\%"),
    ("12", ""),
    ("12", r"\frac{"),
    (r"\sqrt{2}", "1.41421356237309504880168872420969807856967"),
    ("2^{100}", "1267650600228229401496703205377"),
]


@pytest.mark.parametrize(("gold", "reply"), EQUAL)
def test_math_takes_equal_values(gold: str, reply: str) -> None:
    assert grade_math(problem(gold), rf"so \boxed{{{reply}}}") == 1


@pytest.mark.parametrize(("gold", "reply"), DIFFERENT)
def test_math_refuses_what_is_not_exactly_equal(gold: str, reply: str) -> None:
    assert grade_math(problem(gold), rf"so \boxed{{{reply}}}") == 0


def test_math_does_not_guess_without_a_box() -> None:
    assert grade_math(problem("12"), "the answer is 12") == 0


def test_math_says_when_the_gold_answer_is_not_mathematics() -> None:
    with pytest.raises(ValueError, match="gold answer"):
        grade_math(problem(r"\frac{"), r"\boxed{1}")


def test_reasoning_gym_scores_the_box() -> None:
    config = TasksConfig(source=TaskSource.REASONING_GYM, name="chain_sum", count=1)
    item = load_tasks(config, seed=1)[0]
    right, wrong = rf"\boxed{{{item.answer}}}", rf"\boxed{{{int(item.answer) + 1}}}"
    assert grade_gym(item, right) == 1
    assert grade_gym(item, wrong) < 1
    assert grade_gym(item, item.answer) == 0
