"""The digits that ship with the package: the same bits everywhere, nothing twice, nothing cut."""

from __future__ import annotations

import hashlib
import itertools
from importlib import resources

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mgpu_helpers.lessons import digits
from mgpu_helpers.lessons.digits import load

few = settings(max_examples=12)
sizes, seeds = st.integers(digits.SMALLEST, 48), st.integers(0, 2**64)


def test_they_are_few_bytes_under_a_licence_and_as_uci_counts_them():
    folder = resources.files("mgpu_helpers.lessons")
    assert len((folder / "digits.npz").read_bytes()) < 150_000
    licence = (folder / "DIGITS_LICENSE.txt").read_text()
    assert "CC BY 4.0" in licence and "10.24432/C50P49" in licence
    both = np.bincount(np.concatenate([load()[1], load(test=True)[1]]))
    assert both.tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]


@pytest.mark.parametrize("arguments, expected", [
    ({}, "bccb562f0129a33b"), ({"n": 5000, "seed": 3}, "40ac00a9b2ede0cd"),
    ({"n": 700, "size": 17, "seed": 1, "test": True}, "9241171b9414f455"),
])  # fmt: skip
def test_the_same_bits_everywhere(arguments, expected):
    """These are the bits on any processor and any NumPy; a change here changes every lesson."""
    bits = b"".join(each.tobytes() for each in load(**arguments))
    assert hashlib.sha256(bits).hexdigest()[:16] == expected


@few
@given(n=st.integers(1, 4000), size=sizes, seed=seeds, test=st.booleans())
def test_any_n_size_and_seed(n, size, seed, test):
    images, labels = load(n, size=size, seed=seed, test=test)
    assert images.shape == (n, size, size, 1) and labels.shape == (n,)
    assert images.min() == 0 and 0.5 < images.max() <= 1
    assert set(labels) <= set(range(10))
    start = n // 2 + 1
    fewer, fewer_labels = load(start, size=size, seed=seed, test=test)
    assert (fewer == images[:start]).all() and (fewer_labels == labels[:start]).all()


@settings(max_examples=3)
@given(size=sizes, seed=seeds)
def test_copies_are_whole_originals_moved(size, seed):
    """The second pass holds every original again, moved by 1 or 2 pixels, nothing cut off."""
    images, labels = load(720, size=size, seed=seed, test=True)
    originals, copies = images[:360, ..., 0], images[360:, ..., 0]
    unmoved = {image.tobytes(): label for image, label in zip(originals, labels, strict=False)}
    found, ways = set(), list(itertools.product(range(-2, 3), repeat=2))
    for copy, label in zip(copies, labels[360:], strict=True):
        assert copy.tobytes() not in unmoved
        moved = {np.roll(copy, way, (0, 1)).tobytes() for way in ways}
        back = moved & unmoved.keys()
        assert len(back) == 1
        assert unmoved[next(iter(back))] == label
        found |= back
    assert len(found) == 360


def test_a_copy_repeats_only_after_25_passes_and_parts_stay_apart():
    images, labels = load(26 * 360, size=12, test=True)
    distinct = {image.tobytes() for image in images[: 25 * 360]}
    assert len(distinct) == 25 * 360
    assert {image.tobytes() for image in images[25 * 360 :]} <= distinct
    assert np.bincount(labels).tolist() == [26 * 36] * 10
    assert distinct.isdisjoint(image.tobytes() for image in load(1437 * 25, size=12)[0])
