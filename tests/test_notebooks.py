"""The built notebooks keep the rules that nbval cannot see; tools/check_notebooks.py says which."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from check_notebooks import RULES, problems, strangers
from lessons import NOTEBOOKS, ROOT, SERIES, WAYS, Lesson, read, with_table, with_ways
from mgpu_helpers.charts.base import HOST, PALETTE

LESSONS = read()
DRAWINGS = sorted((NOTEBOOKS / "pictures").iterdir())
HOUSE = {"host": HOST, **{f"d{i}": shade for i, shade in enumerate(PALETTE)}}
each_lesson = pytest.mark.parametrize("lesson", LESSONS, ids=[one.name for one in LESSONS])


@each_lesson
@pytest.mark.parametrize("rule", RULES)
def test_keeps_rule(lesson: Lesson, rule: str):
    found = problems(lesson, LESSONS, [rule])
    assert not found, "\n".join(found)


def test_every_notebook_has_a_source():
    assert LESSONS and strangers(LESSONS, NOTEBOOKS) == []


@pytest.mark.parametrize("path", DRAWINGS, ids=[path.stem for path in DRAWINGS])
def test_a_drawing_is_read_on_a_phone_and_on_a_dark_page(path: Path):
    """Its lesson shows it, on paper of its own; no letter is under 9 pixels on 350."""
    (lesson,) = [one for one in LESSONS if one.number == path.name[:2]]
    assert f"](pictures/{path.name})" in lesson.source.read_text(encoding="utf-8")
    text, svg = path.read_text(encoding="utf-8"), ElementTree.parse(path).getroot()
    wide = float(svg.attrib["viewBox"].split()[2])
    sizes = [int(size) for size in re.findall(r"font(?:-size)?:(\d+)px", text)]
    assert min(sizes) * 350 / wide > 9 and len(text) < 10_000
    light, dark = text.split("prefers-color-scheme: dark")
    assert ".page{fill:#fff}" in light and ".page{fill:#1b1e23}" in dark
    named = dict(re.findall(r"\.(d\d|host)\{fill:(#\w+)", text))
    assert named == {name: HOUSE[name] for name in named}


@pytest.mark.parametrize("page, marks, with_one", [
    ("notebooks/README.md", SERIES, with_table), ("docs/layouts.md", WAYS, with_ways),
])  # fmt: skip
def test_a_page_has_the_table_of_lessons_or_of_ways_as_it_is(page, marks, with_one):
    text = (ROOT / page).read_text(encoding="utf-8")
    assert marks.search(text)
    assert with_one(text, LESSONS) == text, "run: python tools/lessons.py"
