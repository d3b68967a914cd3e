"""The checks of the exercises: a hint for what readers get wrong, and never a stack trace."""

from __future__ import annotations

import functools
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
from mgpu_helpers.lessons.checks import lesson_02, lesson_18
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
    if hasattr(check, "__wrapped__") and not name.startswith("_")
}
ANSWERS = {number: importlib.import_module(f"answers.lesson_{number}") for number in LESSONS}
# What the check takes beside the answer.
MORE = {"06.mean_map": [lambda x: x**2], "02.treated": [{1, 4, 5}]}
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


def test_what_is_returned_is_converted_or_gets_a_hint(tf):
    two = functools.partial(numbers, shape=(2,), way="two")
    nothing = [None, "text", object(), np.array(1.0), tf.constant(1.0)]
    other = [[1], [[1], [2, 3]], ["a", "b"], [True, False]]
    for convert, bad in ((two, nothing + other), (lambda value: listed(value, "two"), nothing)):
        assert list(convert((1, 2))) == [1, 2]
        for each in bad:
            with pytest.raises(NotYet, match="two"):
                convert(each)


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


def bad_answers(name: str) -> Iterator[Any]:
    functions = [lambda *args, value=value, **named: value for value in BAD.values()]
    yield from [BAD["matrix"], *functions, raises]
    if name == "06.uneven":  # makes functions
        yield from [lambda *args, function=function: function for function in functions]


@pytest.mark.parametrize("name", CHECKS)
def test_a_bad_answer_gets_a_hint(plan, capsys, monkeypatch, name):
    patients = lesson_02.lesson_02  # no bad answer trains its patient, so one serves them all
    monkeypatch.setattr(patients, "watched", functools.cache(patients.watched))
    for answer in bad_answers(name):
        CHECKS[name](answer, *MORE.get(name, []))
        said = says_not_yet(capsys)
        assert answer is not raises or "it raises ValueError: what is wrong" in said


def mistakes(name: str) -> dict[str, Callable[..., Any]]:
    return vars(CHECKS[name]).get("wrong", {})


@pytest.mark.parametrize("name", [name for name in CHECKS if mistakes(name)])
def test_a_mistake_that_a_check_knows_gets_its_hint(plan, capsys, name):
    for hint, mistake in mistakes(name).items():
        CHECKS[name](mistake)
        assert f": {hint}\n" in says_not_yet(capsys)


# right answers and wrong ones

TAGGED = {(number, tag): [cell.source for cell in lesson.cells if tag in tags(cell)]
          for number, lesson in LESSONS.items() for tag in ("exercise", "solution")}  # fmt: skip
EXERCISES = {f"{number}-{nth}": (number, nth) for number in LESSONS
             for nth, _ in enumerate(TAGGED[number, "exercise"], 1)}  # fmt: skip
# Of answers that train, or are traced, for long `make test` has so many: the first right ones and
# the first wrong ones. `make thorough` has the rest; the solutions run in the lessons.
QUICK = {
    "00-1": (1, 2), "04-1": (1, 4), "04-2": (1, 3), "18-1": (1, 2), "01-1": (1, 3), "06-2": (1, 3),
    "07-2": (1, 2), "11-2": (1, 3), "12-1": (1, 2), "14-2": (1, 2), "19-2": (1, 6), "02-2": (0, 2),
    "03-1": (1, 2),
}  # fmt: skip


def check_of(number: str, nth: int) -> str:
    return judging(number, nth).removeprefix("checks.").partition("(")[0]


def judging(number: str, nth: int) -> str:
    return last_statement(TAGGED[number, "exercise"][nth - 1])


def prepared(number: str) -> str:
    """Return the code that an answer to this lesson's exercises may rely on."""
    cells = [cell.source for cell in LESSONS[number].cells if cell.cell_type == "code"]
    lines = getattr(ANSWERS[number], "CELLS", [])
    needed = [[cell for cell in cells if line in cell][-1] for line in lines]
    first = [line for line in cells[0].splitlines() if line.startswith(("import ", "from "))]
    return "\n".join([*first, "plan = devices.current()", cells[1], *needed])


def solution(number: str, nth: int) -> str:
    return TAGGED[number, "solution"][nth - 1].rpartition("checks.")[0]


def judge(number: str, nth: int, answer: tuple[str, ...], folder: Path) -> None:
    """Run an answer and its check, after what the lesson has made by then.

    An answer is its text, or what to put in place of what in the lesson's solution.
    """
    text = answer[0]
    if len(answer) > 1:
        text = solution(number, nth)
        for old, new in zip(answer[::2], answer[1::2], strict=True):
            assert old in text, old
            text = text.replace(old, new)
    file = folder / "answer.py"  # a file, because AutoGraph reads the source of what it traces
    file.write_text("\n\n".join([prepared(number), text, judging(number, nth)]))
    runpy.run_path(str(file))


def answers_to(number: str, nth: int, wrong: bool) -> list[Any]:
    if wrong:
        return ANSWERS[number].WRONG.get(nth, [])
    return [text if isinstance(text, tuple) else (text,) for text in ANSWERS[number].RIGHT[nth]]


def cases(wrong: bool) -> Iterator[Any]:
    for name, at in EXERCISES.items():
        for place, answer in enumerate(answers_to(*at, wrong)):
            quick = name not in QUICK or place < QUICK[name][wrong]
            marks = [] if quick else [pytest.mark.thorough]
            yield pytest.param(*at, answer, marks=marks, id=f"{name}-{place}")


def test_an_exercise_has_its_check_a_right_answer_and_five_wrong_ones():
    checks = {name: f"{at[0]}.{check_of(*at)}" for name, at in EXERCISES.items()}
    assert sorted(checks.values()) == sorted(CHECKS)
    assert {*QUICK} <= {*EXERCISES}
    for name, at in EXERCISES.items():
        assert len(answers_to(*at, wrong=False)) >= 1, name  # beside the solution
        assert len(answers_to(*at, wrong=True)) + len(mistakes(checks[name])) >= 5, name


@pytest.mark.parametrize("number, nth, answer", [*cases(wrong=False)])
def test_a_right_answer_is_accepted(plan, capsys, tmp_path, number, nth, answer):
    judge(number, nth, answer, tmp_path)
    assert capsys.readouterr().out.splitlines()[-1].startswith("yes: ")


@pytest.mark.parametrize("number, nth, answer", [*cases(wrong=True)])
def test_a_wrong_answer_gets_its_hint(plan, capsys, tmp_path, monkeypatch, number, nth, answer):
    *answer, hint = answer
    in_vain = "start all" in hint  # what does not start at once waits for the others up to a limit
    monkeypatch.setattr(lesson_18, "LIMIT", 0.2 if in_vain else 2.0)
    judge(number, nth, tuple(answer), tmp_path)
    assert hint in says_not_yet(capsys)
