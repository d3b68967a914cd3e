"""docs/errors.md has the words of the messages: each that needs no GPU is raised and compared."""

from __future__ import annotations

import re

import pytest

from lessons import ROOT
from mgpu_helpers.lessons.errors import RAISED, SLOW, raised

PAGE = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
HEADINGS = re.findall(r'^## "(.+)"$', PAGE, flags=re.MULTILINE)
EACH = [*RAISED, *(pytest.param(words, marks=pytest.mark.thorough) for words in SLOW)]


@pytest.mark.parametrize("words", EACH)
def test_the_words_of_the_page_are_in_the_message(plan, words: str):
    assert words in HEADINGS
    assert words in str(raised(words))


def test_the_page_lists_each_message_once_in_its_table_and_says_which_are_raised():
    rows = re.findall(r"^\| \[(.+?)\]\(#(\w+)\) .*\| (✓?) ?\|$", PAGE, flags=re.MULTILINE)
    assert [words for words, *_ in rows] == HEADINGS and len(HEADINGS) == 13
    assert [words for words, _, tick in rows if tick] == [w for w in HEADINGS if w in RAISED | SLOW]
    assert [anchor for _, anchor, _ in rows] == re.findall(r'<a id="(\w+)">', PAGE)


def test_the_lessons_that_the_page_names_are_there():
    linked = re.findall(r"\]\((\.\./notebooks/[^)]+)\)", PAGE)
    assert linked and all((ROOT / "docs" / link).exists() for link in linked)
