"""The built notebooks keep the rules that nbval cannot see; tools/check_notebooks.py says which."""

from __future__ import annotations

import pytest

from check_notebooks import RULES, problems, strangers
from lessons import NOTEBOOKS, ROOT, Lesson, read

LESSONS = read()
each_lesson = pytest.mark.parametrize("lesson", LESSONS, ids=[one.name for one in LESSONS])


def test_there_are_lessons():
    assert LESSONS


@each_lesson
@pytest.mark.parametrize("rule", RULES)
def test_keeps_rule(lesson: Lesson, rule: str):
    found = problems(lesson, LESSONS, [rule])
    assert not found, "\n".join(found)


def test_every_notebook_has_a_source():
    assert strangers(LESSONS, NOTEBOOKS) == []


@each_lesson
def test_readme_shows_the_lesson(lesson: Lesson):
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"(notebooks/{lesson.notebook.name})" in readme
    assert f"(docs/{lesson.cover.name})" in readme
    assert lesson.cover.exists()
