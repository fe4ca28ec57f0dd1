"""Task sets: what each source gives, and the name of what is wrong."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from saocli.config.tasks import TasksConfig, TaskSource
from saocli.errors import ConfigError
from saocli.tasks.arithmetic import FAMILIES
from saocli.tasks.letters import FAMILIES as LETTERS
from saocli.tasks.sets import eval_problems, load_tasks
from saocli.types import Problem

CONF = Path(__file__).parents[1] / "conf" / "tasks"
ROWS = [{"n": "p1", "ask": "1+1?", "gold": "2"}, {"n": "p2", "ask": "1+2?", "gold": "3"}]
COLUMNS = {"id": "n", "prompt": "ask", "answer": "gold"}


def shipped(name: str) -> TasksConfig:
    values = yaml.safe_load((CONF / f"{name}.yaml").read_text())
    return TasksConfig(**values | {"source": TaskSource(values["source"])})


def question(problem: Problem) -> str:
    return problem.messages[-1]["content"]


def arithmetic(name: str | None, count: int = 30) -> TasksConfig:
    return TasksConfig(source=TaskSource.ARITHMETIC, name=name, count=count)


def test_imo3_has_the_three_problems_with_their_answers() -> None:
    problems = load_tasks(shipped("imo3"), seed=0)
    assert [(p.id, p.answer, p.grader) for p in problems] == [
        ("imo-4", "2^{u-2}", "math"),
        ("imo-8", "-\\frac{2023}{2024^2}", "math"),
        ("imo-12", "\\frac{1}{2}", "math"),
    ]
    assert all("\\boxed" in question(p) for p in problems)
    assert shipped("imo3").attempts == 6


def test_arith_shows_three_solved_turns_with_their_boxes() -> None:
    config = shipped("arith")
    problem = load_tasks(config, seed=0)[0]
    assert [m["role"] for m in problem.messages] == ["user", "assistant"] * 3 + ["user"]
    assert [m["content"] for m in problem.messages[1::2]] == [
        "2 + 1 = 3. The answer is \\boxed{3}.",
        "57 is larger than 31. The answer is \\boxed{57}.",
        "10 - 4 = 6. The answer is \\boxed{6}.",
    ]
    assert (config.max_tokens, config.temperature, problem.grader) == (40, 1.0, "boxed")


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_arithmetic_answers_are_right(family: str) -> None:
    for problem in load_tasks(arithmetic(family, 200), seed=3):
        words = question(problem).replace("?", "").replace(",", "").split()
        numbers = [int(word) for word in words if word.isdigit()]
        a, b = numbers
        expected = {"add1": a + b, "mul1": a * b, "sub1": a - b, "larger": max(a, b), "word": a * b}[family]
        assert int(problem.answer) == expected >= 0


def test_families_take_turns_and_ids_are_unique() -> None:
    problems = load_tasks(arithmetic("add1, larger,word"), seed=0)
    assert Counter(p.source["family"] for p in problems) == {"add1": 10, "larger": 10, "word": 10}
    assert len({p.id for p in problems}) == 30


def test_equal_seeds_draw_equal_problems_and_others_do_not() -> None:
    assert load_tasks(arithmetic("larger"), seed=5) == load_tasks(arithmetic("larger"), seed=5)
    assert load_tasks(arithmetic("larger"), seed=5) != load_tasks(arithmetic("larger"), seed=6)


def test_a_longer_draw_starts_with_the_shorter_one() -> None:
    assert load_tasks(arithmetic("add1,word", 40), seed=1)[:10] == load_tasks(arithmetic("add1,word", 10), seed=1)


def test_evaluation_draws_from_a_stream_of_its_own() -> None:
    train = load_tasks(arithmetic("larger", 100), seed=0)
    held_out = eval_problems(arithmetic("larger", 100), seed=0, count=100)
    assert [question(p) for p in train] != [question(p) for p in held_out]
    assert not {p.id for p in train} & {p.id for p in held_out}
    # Two independent draws of 100 out of 8010 ordered pairs share about 1.2 questions.
    assert len({question(p) for p in train} & {question(p) for p in held_out}) < 10
    assert held_out == eval_problems(arithmetic("larger", 3), seed=0, count=100)


def test_letters_shows_what_it_wants() -> None:
    problems = load_tasks(shipped("letters"), seed=0)
    assert len(problems) == 64
    for problem in problems:
        assert problem.answer == LETTERS[problem.source["family"]]
        assert len(question(problem)) == 12
        assert set(question(problem)) <= set(problem.answer)


def test_letters_may_change_what_scores_in_the_middle() -> None:
    plain = TasksConfig(source=TaskSource.LETTERS, name="letters,lower", count=8)
    drifting = replace(plain, options={"then": "digits"})
    before, after = load_tasks(plain, seed=3), load_tasks(drifting, seed=3)
    assert [p.messages for p in after] == [p.messages for p in before], "prompts do not tell"
    assert [p.id for p in after] == [p.id for p in before]
    assert after[:4] == before[:4]
    assert {p.answer for p in after[4:]} == {LETTERS["digits"]}
    assert [p.phase for p in after] == [0] * 4 + [1] * 4
    assert [p.source["family"] for p in after[3:6]] == ["lower", "letters→digits", "lower→digits"]
    assert {p.answer for p in eval_problems(drifting, seed=3, count=4)} == {LETTERS["digits"]}
    fails(
        "tasks.options.then digit digits", source=TaskSource.LETTERS, name="letters", count=2, options={"then": "digit"}
    )
    fails("tasks.options than", source=TaskSource.LETTERS, name="letters", count=2, options={"than": "digits"})


@pytest.mark.parametrize("suffix", ["yaml", "jsonl", "csv"])
def test_file_formats_give_the_same_problems(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"set.{suffix}"
    text = {
        "yaml": yaml.safe_dump(ROWS),
        "jsonl": "".join(json.dumps(row) + "\n" for row in ROWS),
        "csv": "n,ask,gold\n" + "".join(f'{row["n"]},"{row["ask"]}",{row["gold"]}\n' for row in ROWS),
    }[suffix]
    path.write_text(text)
    options = COLUMNS | {"select": [2, 1]}
    problems = load_tasks(TasksConfig(source=TaskSource.FILE, path=str(path), options=options), seed=0)
    assert [(p.id, p.answer) for p in problems] == [("p2", "3"), ("p1", "2")]
    assert question(problems[0]).startswith("1+2?\n\n")


def test_a_file_without_ids_numbers_its_rows(tmp_path: Path) -> None:
    path = tmp_path / "set.jsonl"
    path.write_text("".join(json.dumps({"prompt": "q", "answer": index}) + "\n" for index in range(3)))
    config = TasksConfig(source=TaskSource.FILE, path=str(path), grader="exact", count=2)
    problems = load_tasks(config, seed=0)
    assert [(p.id, p.answer, question(p)) for p in problems] == [("1", "0", "q"), ("2", "1", "q")]


def fails(words: str, **config: object) -> None:
    with pytest.raises(ConfigError) as caught:
        load_tasks(TasksConfig(**config), seed=0)  # type: ignore[arg-type]
    assert all(word in str(caught.value) for word in words.split()), str(caught.value)


def test_wrong_sets_are_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "set.csv"
    path.write_text("n,ask,gold\np1,q,1\n")
    file: dict[str, object] = {"source": TaskSource.FILE, "path": str(path)}
    fails("nowhere.csv", source=TaskSource.FILE, path=str(tmp_path / "nowhere.csv"))
    fails("set.parquet .csv", source=TaskSource.FILE, path="set.parquet")
    fails("tasks.path", source=TaskSource.FILE)
    fails("Question tasks.options.prompt n, ask, gold", **file, options=COLUMNS | {"prompt": "Question"})
    fails("set.csv 'prompt'", **file)
    fails("select 2 1", **file, options=COLUMNS | {"select": [2]})
    fails("select 0", **file, options=COLUMNS | {"select": [0]})
    fails("colums", **file, options={"colums": 1})
    fails("tasks.count=2 1", **file, options=COLUMNS, count=2)
    fails("add2 add1", source=TaskSource.ARITHMETIC, name="add1,add2", count=1)
    fails("empty add1", source=TaskSource.ARITHMETIC, count=1)
    fails("tasks.count=0", source=TaskSource.ARITHMETIC, name="add1")
    fails("tasks.grader boxd boxed", source=TaskSource.ARITHMETIC, name="add1", count=1, grader="boxd")
    item = {"id": "a", "prompt": "q", "answer": 1}
    fails("tasks.items[0] answer", source=TaskSource.INLINE, items=[{"id": "a", "prompt": "q"}])
    fails("tasks.items[1] 'a'", source=TaskSource.INLINE, items=[item, item])
    fails("tasks.items[0] anwser", source=TaskSource.INLINE, items=[item | {"anwser": 1}])
    fails("tasks.items[0].grader", source=TaskSource.INLINE, items=[item | {"grader": "x"}])
    fails("no problems", source=TaskSource.INLINE)


def test_broken_files_name_the_line(tmp_path: Path) -> None:
    path = tmp_path / "set.jsonl"
    path.write_text('{"prompt": "q", "answer": 1}\n{"prompt": \n')
    fails("set.jsonl line 2", source=TaskSource.FILE, path=str(path))
    path = tmp_path / "set.yaml"
    path.write_text("a: b\n")
    fails("set.yaml list", source=TaskSource.FILE, path=str(path))


def test_a_written_down_set_has_nothing_held_out() -> None:
    with pytest.raises(ConfigError, match=r"tasks\.eval\.samples"):
        eval_problems(shipped("imo3"), seed=0, count=4)


def test_reasoning_gym_draws_from_its_seed() -> None:
    options = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}
    config = TasksConfig(source=TaskSource.REASONING_GYM, name="chain_sum", count=5, options=options)
    problems = load_tasks(config, seed=1)
    assert problems == load_tasks(config, seed=1)
    assert [question(p) for p in problems] != [question(p) for p in eval_problems(config, seed=1, count=5)]
    assert len(problems) == 5 and all("\\boxed" in question(p) and p.grader == "reasoning_gym" for p in problems)


def test_reasoning_gym_names_what_is_wrong() -> None:
    gym: dict[str, object] = {"source": TaskSource.REASONING_GYM, "count": 1}
    fails("chain_sun chain_sum", **gym, name="chain_sun")
    fails("tasks.options chain_sum", **gym, name="chain_sum", options={"no_such": 1})


def test_without_reasoning_gym_the_fix_is_named() -> None:
    code = (
        "import sys; sys.modules['reasoning_gym'] = None\n"
        "from saocli.config.tasks import TasksConfig, TaskSource\n"
        "from saocli.errors import MachineError\n"
        "from saocli.tasks.sets import load_tasks\n"
        "try: load_tasks(TasksConfig(source=TaskSource.REASONING_GYM, name='chain_sum', count=1), seed=0)\n"
        "except MachineError as error: print(error.fix)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "pip install 'saocli[tasks]'"
