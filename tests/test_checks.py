"""The checks of the exercises: a hint for what readers get wrong, and never a stack trace."""

from __future__ import annotations

import importlib
import math
import runpy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from check_notebooks import last_statement
from lessons import read, tags
from mgpu_helpers.lessons.checks import lesson_06
from mgpu_helpers.lessons.checks.judge import (
    NotYet,
    call,
    exercise,
    expect,
    listed,
    numbers,
    same_as,
    traced,
)

LESSONS = {lesson.number: lesson for lesson in read()}
CHECKS = {
    f"{number}.{name}": check
    for number in LESSONS
    for module in [importlib.import_module(f"mgpu_helpers.lessons.checks.lesson_{number}")]
    for name, check in vars(module).items()
    if hasattr(check, "__wrapped__")
}
ANSWERS = {number: importlib.import_module(f"answers.lesson_{number}") for number in LESSONS}
# What the check takes beside the answer.
MORE = {"08.mean_map": [lambda x: x**2], "19.treated": [{1, 4, 5}]}
BAD = {"None": None, "list": [1, 2], "text": "text", "matrix": np.ones([2, 3]), "object": object()}


@exercise
def four(function: Callable[[], Any]) -> str:
    """Check an exercise whose right answer is a function that returns 4."""
    expect(call(function) == 4, "add\n  them")
    return "four"


def raises(*args: Any, **named: Any) -> Any:
    raise ValueError("in a file\n\n  what is wrong\n")


def says_not_yet(capsys: pytest.CaptureFixture[str]) -> str:
    said = capsys.readouterr().out
    assert said.startswith("not yet: ") and said.count("\n") == 1 and len(said) > 20, said
    return said


# the judge


def test_an_exercise_prints_what_its_check_says(capsys):
    four(lambda: 4)
    four(lambda: 5)
    four(raises)
    hints = "not yet: add them\nnot yet: it raises ValueError: what is wrong\n"
    assert capsys.readouterr().out == f"yes: four\n{hints}"


def test_a_wrong_number_of_arguments_is_named(plan):
    with pytest.raises(NotYet, match=r"it raises TypeError: .*too many positional arguments`?$"):
        traced(lambda: 4, np.ones([90, 90], "float32"))


def test_an_interrupt_and_a_bug_in_a_check_stay_errors():
    def interrupted():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        four(interrupted)
    with pytest.raises(ZeroDivisionError):
        exercise(lambda answer: 1 / 0)(4)


@pytest.mark.parametrize(
    "convert", [lambda value: numbers(value, (2,), "two"), lambda value: listed(value, "two")]
)
def test_what_is_returned_is_converted_or_gets_a_hint(tf, convert):
    assert list(convert((1, 2))) == [1, 2]
    for bad in (None, "text", object(), np.array(1.0), tf.constant(1.0)):
        with pytest.raises(NotYet, match="two"):
            convert(bad)


@pytest.mark.parametrize("bad", [[1], [[1], [2, 3]], ["a", "b"], [True, False]])
def test_other_shapes_and_kinds_are_not_numbers(bad):
    with pytest.raises(NotYet):
        numbers(bad, (2,), "two")


def test_same_as_names_the_mistake_of_the_first_case_that_differs(capsys):
    check = same_as(
        lambda some: sum(some), lambda: [([2, 2],), ([1, 3, 4],)], way="a number", yes="all",
        told=lambda right, got, some: f"{some} give {right}, not {got}", unknown="add them",
        wrong={"it gives nothing": lambda some: None, "that is their product": math.prod,
               "only two": lambda some: sum(some[:2])},
        changed="it takes them away",
    )

    def emptied(some):
        total = sum(some)
        some.clear()
        return total

    for answer in (sum, math.prod, lambda some: some[0] + some[1], max, str, emptied,
                   lambda some: np.nan, lambda some: str(sum(some))):
        check(answer)
    assert capsys.readouterr().out.splitlines() == [
        "yes: all", "not yet: [1, 3, 4] give 8, not 12: that is their product",
        "not yet: [1, 3, 4] give 8, not 4: only two", "not yet: [2, 2] give 4, not 2: add them",
        "not yet: it returns a value of type str: a number", "not yet: it takes them away",
        "not yet: [2, 2] give 4, not nan: add them",
        "not yet: '4' is right, but text: make it a number",
    ]


# the checks


def test_every_exercise_has_its_check():
    used = {f"{number}.{check_of(number, nth)}" for number, nth in exercises()}
    assert used == set(CHECKS)


def bad_answers(name: str) -> Iterator[Any]:
    functions = [lambda *args, value=value, **named: value for value in BAD.values()]
    yield from [BAD["matrix"], *functions, raises]
    if name == "08.uneven":  # makes functions
        yield from [lambda *args, function=function: function for function in functions]


@pytest.mark.parametrize("name", CHECKS)
def test_a_bad_answer_gets_a_hint(plan, capsys, name):
    for answer in bad_answers(name):
        CHECKS[name](answer, *MORE.get(name, []))
        said = says_not_yet(capsys)
        assert answer is not raises or "it raises ValueError: what is wrong" in said


MISTAKES = [(name, hint) for name, check in CHECKS.items() for hint in vars(check).get("wrong", {})]


@pytest.mark.parametrize("name, hint", MISTAKES)
def test_a_mistake_that_a_check_knows_gets_its_hint(plan, capsys, name, hint):
    CHECKS[name](vars(CHECKS[name])["wrong"][hint])
    assert f": {hint}\n" in says_not_yet(capsys)


# right answers and wrong ones


def exercises() -> Iterator[tuple[str, int]]:
    for number, lesson in LESSONS.items():
        for nth in range(sum("exercise" in tags(cell) for cell in lesson.cells)):
            yield number, nth + 1


def check_of(number: str, nth: int) -> str:
    return judging(number, nth).removeprefix("checks.").partition("(")[0]


def judging(number: str, nth: int) -> str:
    return last_statement(tagged(number, "exercise")[nth - 1])


def tagged(number: str, tag: str) -> list[str]:
    return [cell.source for cell in LESSONS[number].cells if tag in tags(cell)]


def prepared(number: str) -> str:
    """Return the code that an answer to this lesson's exercises may rely on."""
    cells = [cell.source for cell in LESSONS[number].cells if cell.cell_type == "code"]
    lines = getattr(ANSWERS[number], "CELLS", [])
    needed = [[cell for cell in cells if line in cell][-1] for line in lines]
    first = [line for line in cells[0].splitlines() if line.startswith(("import ", "from "))]
    return "\n".join([*first, "plan = devices.current()", cells[1], *needed])


def solution(number: str, nth: int) -> str:
    return tagged(number, "solution")[nth - 1].rpartition("checks.")[0]


def judge(number: str, nth: int, answer: str | tuple[str, ...], folder: Path) -> None:
    """Run an answer and its check, after what the lesson has made by then.

    An answer is its text, or what to put in place of what in the lesson's solution.
    """
    if not isinstance(answer, str):
        pairs, answer = zip(answer[::2], answer[1::2], strict=True), solution(number, nth)
        for old, new in pairs:
            assert old in answer, old
            answer = answer.replace(old, new)
    file = folder / "answer.py"  # a file, because AutoGraph reads the source of what it traces
    file.write_text("\n\n".join([prepared(number), answer, judging(number, nth)]))
    runpy.run_path(str(file))


# Each answer trains for some passes: `make test` has the first wrong ones, and the solution in its
# lesson; `make thorough` has all.
LONG = {("19", 2): 2}


def marks(number: str, nth: int, place: int) -> list[pytest.MarkDecorator]:
    return [pytest.mark.thorough] if place >= LONG.get((number, nth), place + 1) else []


def right() -> Iterator[Any]:
    for number, nth in exercises():
        for place, answer in enumerate([solution(number, nth), *ANSWERS[number].RIGHT[nth]]):
            long = marks(number, nth, place + 2)  # the solution is in the lesson, too
            yield pytest.param(number, nth, answer, id=f"{number}-{nth}-{place}", marks=long)


@pytest.mark.parametrize("number, nth", list(exercises()))
def test_an_exercise_has_three_right_answers_and_five_wrong_ones(number: str, nth: int):
    assert len(ANSWERS[number].RIGHT[nth]) >= 2  # beside the solution
    known = [hint for name, hint in MISTAKES if name == f"{number}.{check_of(number, nth)}"]
    assert len(ANSWERS[number].WRONG.get(nth, [])) + len(known) >= 5


@pytest.mark.parametrize("number, nth, answer", list(right()))
def test_a_right_answer_is_accepted(plan, capsys, tmp_path, number, nth, answer):
    judge(number, nth, answer, tmp_path)
    assert capsys.readouterr().out.splitlines()[-1].startswith("yes: ")


@pytest.mark.parametrize(
    "number, nth, answer, hint",
    [
        pytest.param(number, nth, answer, hint, id=f"{number}-{nth}-{hint}",
                     marks=marks(number, nth, place))
        for number in LESSONS
        for nth, answers in ANSWERS[number].WRONG.items()
        for place, (*parts, hint) in enumerate(answers)
        for answer in [parts[0] if len(parts) == 1 else tuple(parts)]
    ],
)
def test_a_wrong_answer_gets_its_hint(
    plan, capsys, tmp_path, monkeypatch, number, nth, answer, hint
):
    monkeypatch.setattr(lesson_06, "LIMIT", 2.0)
    judge(number, nth, answer, tmp_path)
    assert hint in says_not_yet(capsys)
