"""docs/errors.md has the words of the messages: each that needs no GPU is raised and compared."""

from __future__ import annotations

import re

import pytest

from lessons import ROOT
from messages import RAISED, SLOW, raised
from mgpu_helpers import devices
from mgpu_helpers.devices.messages import MESSAGES

PAGE = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
HEADINGS = re.findall(r'^## "(.+)"$', PAGE, flags=re.MULTILINE)
EACH = [*RAISED, *(pytest.param(words, marks=pytest.mark.thorough) for words in SLOW)]


def meant(words: str) -> str:
    """Give what the table of the package says that a message means."""
    means = next(means for pattern, means, _ in MESSAGES if re.search(pattern, words, re.I))
    return means.format(device="the GPU", which="the GPU")


@pytest.mark.parametrize("words", EACH)
def test_the_words_of_the_page_are_in_the_message(plan, words: str):
    error = raised(words)
    assert words in HEADINGS and words in str(error)
    assert devices.explain(error).startswith(meant(words))


@pytest.mark.parametrize("text, words", [
    ("It looks like you are using a PerReplica object while not inside a replica context, which is "
     "not supported.", "Attempt to convert a value (PerReplica"),
    ("unsupported operand type(s) for +: 'PerReplica' and 'float'",
     "Attempt to convert a value (PerReplica"),
    ("'PerReplica' object has no attribute 'numpy'", "Attempt to convert a value (PerReplica"),
    ("Collective instance 124 expected type 0 but got type 3",
     "Shape mismatch in the collective instance"),
])  # fmt: skip
def test_other_words_for_the_same_are_known(text: str, words: str):
    assert devices.explain(ValueError(text)).startswith(f"{meant(words)} (")


def test_of_a_long_message_whole_words_are_shown():
    said = devices.explain(ValueError(f"nodes in a cycle {'words ' * 40}"))
    assert "words words …): let whole tasks wait" in said


def test_what_keras_wraps_an_error_in_does_not_hide_it(plan):
    """A layer puts its own words around those of TensorFlow, and cuts the traceback."""
    import keras
    import tensorflow as tf

    class Adds(keras.layers.Layer):
        def call(self, x):
            return tf.raw_ops.AddN(inputs=[x, tf.ones([3])])

    for call in Adds(), tf.function(Adds()):
        with pytest.raises(Exception) as raised_in:
            call(tf.ones([2]))
        said = devices.explain(raised_in.value)
        assert "Exception encountered" in str(raised_in.value) and "Adds" not in said
        assert said.startswith(meant("must have the same size and shape")), said


def test_the_page_lists_the_table_of_the_package_and_says_which_are_raised():
    rows = re.findall(r"^\| \[(.+?)\]\(#(\w+)\) \| (.+?) \|.*\| (✓?) ?\|$", PAGE, re.MULTILINE)
    assert [words for words, *_ in rows] == HEADINGS and len(HEADINGS) == len(MESSAGES)
    assert [means for *_, means, _ in rows] == [meant(words) for words in HEADINGS]
    assert [words for words, *_, tick in rows if tick] == [
        words for words in HEADINGS if words in RAISED | SLOW
    ]
    assert [anchor for _, anchor, *_ in rows] == re.findall(r'<a id="(\w+)">', PAGE)


def test_the_lessons_that_the_page_names_are_there():
    linked = re.findall(r"\]\((\.\./notebooks/[^)]+)\)", PAGE)
    assert linked and all((ROOT / "docs" / link).exists() for link in linked)
