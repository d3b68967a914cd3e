"""The digits that ship with the package, and MNIST from files that the tests write themselves."""

from __future__ import annotations

import gzip
import hashlib
import io
from fractions import Fraction
from importlib import resources

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mgpu_helpers import data
from mgpu_helpers.data import batches, digits, mnist

few = settings(max_examples=25, deadline=None)
sizes, seeds = st.integers(data.SMALLEST, 48), st.integers(0, 2**64)


def shipped(part):
    with np.load(resources.files("mgpu_helpers") / "digits.npz") as file:
        return file[f"{part}_images"], file[f"{part}_labels"]


def digest(*arrays):
    return hashlib.sha256(b"".join(a.tobytes() for a in arrays)).hexdigest()[:16]


# The digits


def test_what_ships():
    folder = resources.files("mgpu_helpers")
    assert len((folder / "digits.npz").read_bytes()) < 150_000
    licence = (folder / "DIGITS_LICENSE.txt").read_text()
    assert "CC BY 4.0" in licence and "10.24432/C50P49" in licence
    (train, train_labels), (test, test_labels) = shipped("train"), shipped("test")
    assert train.shape == (1437, 8, 8) and test.shape == (360, 8, 8)
    assert train.dtype == test.dtype == np.uint8 and train.max() == test.max() == 16
    every = {image.tobytes() for image in np.concatenate([train, test])}
    assert len(every) == 1797  # so no image is in both parts, nor twice in one
    assert np.bincount(test_labels).tolist() == [36] * 10
    both = np.bincount(np.concatenate([train_labels, test_labels]))
    assert both.tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]  # as UCI counts


@pytest.mark.parametrize(
    "arguments, expected",
    [
        ({}, "bccb562f0129a33b"),
        ({"n": 5000, "seed": 3}, "40ac00a9b2ede0cd"),
        ({"n": 700, "size": 17, "seed": 1, "test": True}, "9241171b9414f455"),
    ],
)
def test_the_same_bits_everywhere(arguments, expected):
    """These are the bits on any processor and any NumPy; a change here changes every lesson."""
    assert digest(*digits(**arguments)) == expected


@pytest.mark.parametrize("test, count", [(False, 1437), (True, 360)])
def test_none_gives_every_original_once(test, count):
    images, labels = digits(test=test)
    assert images.shape == (count, 28, 28, 1) and images.dtype == np.float32
    assert labels.shape == (count,) and labels.dtype == np.int64
    assert len(np.unique(images, axis=0)) == count
    _, classes = shipped("test" if test else "train")
    assert sorted(labels) == sorted(classes)


@few
@given(n=st.integers(1, 4000), size=sizes, seed=seeds, test=st.booleans())
def test_any_n_size_and_seed(n, size, seed, test):
    images, labels = digits(n, size=size, seed=seed, test=test)
    assert images.shape == (n, size, size, 1) and labels.shape == (n,)
    assert images.min() == 0 and 0.5 < images.max() <= 1
    assert set(labels) <= set(range(10))
    again, _ = digits(n, size=size, seed=seed, test=test)
    assert images.tobytes() == again.tobytes()
    start = n // 2 + 1
    fewer, fewer_labels = digits(start, size=size, seed=seed, test=test)
    assert (fewer == images[:start]).all() and (fewer_labels == labels[:start]).all()


@settings(max_examples=5, deadline=None)
@given(size=sizes, seed=seeds)
def test_copies_are_whole_originals_moved(size, seed):
    """The second pass holds every original again, moved by 1 or 2 pixels, nothing cut off."""
    images, labels = digits(720, size=size, seed=seed, test=True)
    originals, copies = images[:360, ..., 0], images[360:, ..., 0]
    unmoved = {image.tobytes(): label for image, label in zip(originals, labels, strict=False)}
    found = set()
    for copy, label in zip(copies, labels[360:], strict=True):
        assert copy.tobytes() not in unmoved
        back = {
            np.roll(copy, (down, right), (0, 1)).tobytes()
            for down in range(-2, 3)
            for right in range(-2, 3)
        } & set(unmoved)
        assert len(back) == 1
        assert unmoved[next(iter(back))] == label
        found |= back
    assert len(found) == 360


def test_a_copy_repeats_only_after_25_passes():
    images, labels = digits(26 * 360, size=12, test=True)
    distinct = {image.tobytes() for image in images[: 25 * 360]}
    assert len(distinct) == 25 * 360
    assert {image.tobytes() for image in images[25 * 360 :]} <= distinct
    assert np.bincount(labels).tolist() == [26 * 36] * 10


def test_parts_stay_apart_when_moved():
    train, _ = digits(1437 * 25, size=12)
    test, _ = digits(360 * 25, size=12, test=True)
    assert not {i.tobytes() for i in train} & {i.tobytes() for i in test}


@few
@given(size=st.integers(data.SMALLEST, 40), which=st.integers(0, 359))
def test_scaling_is_bilinear(size, which):
    """Against the definition in exact fractions: each new pixel is rounded once."""
    originals, _ = shipped("test")
    inner = size * 5 // 7
    old = np.pad(originals[which].astype(int), 1).tolist()
    new = data._enlarge(originals[which : which + 1], inner)[0]
    centres = [(Fraction(2 * i + 1, 2) * 8 / inner - Fraction(1, 2)) for i in range(inner)]
    for y, down in enumerate(centres):
        for x, right in enumerate(centres):
            top, left = int(down // 1), int(right // 1)
            v, h = down - top, right - left
            a, b = old[top + 1][left + 1 : left + 3], old[top + 2][left + 1 : left + 3]
            exact = (a[0] * (1 - h) + a[1] * h) * (1 - v) + (b[0] * (1 - h) + b[1] * h) * v
            assert new[y, x] == np.float32(exact.numerator) / np.float32(16 * exact.denominator)


def test_looks_like_mnist():
    """A digit stands in the middle 20 pixels of 28, and about a seventh of the picture is ink."""
    images, _ = digits()
    ink = images[..., 0].mean(0)
    assert ink[:4].max() == ink[-4:].max() == ink[:, :4].max() == ink[:, -4:].max() == 0
    assert ink[4].max() > 0 and ink[-5].max() > 0
    assert 0.1 < images.mean() < 0.2  # MNIST has 0.13
    down, right = (ink * np.arange(28)[:, None]).sum(), (ink * np.arange(28)).sum()
    assert abs(down / ink.sum() - 13.5) < 0.5 and abs(right / ink.sum() - 13.5) < 0.5


def test_labels_belong_to_the_images():
    """The nearest training mean names most test digits; shuffled labels would give a tenth."""
    (images, labels), (test, truth) = digits(), digits(test=True)
    means = np.stack([images[labels == digit].mean(0) for digit in range(10)])
    guess = ((test[:, None] - means) ** 2).sum((2, 3, 4)).argmin(1)
    assert (guess == truth).mean() > 0.85


def test_seeds_differ():
    one, other = digits(100, seed=0)[0], digits(100, seed=1)[0]
    assert not np.array_equal(one, other)


@pytest.mark.parametrize(
    "wrong, text",
    [
        ({"n": 0}, "n=0 is not a number of digits: use a whole number, 1 or more, or None for all"),
        ({"n": -5}, "n=-5 is not"),
        ({"n": 2.5}, "n=2.5 is not"),
        ({"n": "10"}, "n='10' is not"),
        ({"n": True}, "n=True is not"),
        ({"size": 11}, "size=11 is not a size in pixels: use a whole number, 12 to 512."),
        ({"size": 513}, "size=513 is not"),
        ({"seed": -1}, "seed=-1 is not a seed: use a whole number, 0 or more."),
        ({"seed": None}, "seed=None is not"),
    ],
)
def test_bad_arguments(wrong, text):
    with pytest.raises(ValueError) as caught:
        digits(**wrong)
    assert str(caught.value).startswith(text)


def test_numpy_integers_are_integers():
    assert len(digits(np.int32(3), size=np.int64(12), seed=np.uint8(1))[1]) == 3


# Batches


@few
@given(count=st.integers(1, 60), drawn=st.data(), seed=seeds)
def test_batches_are_full_and_hold_each_example_once(count, drawn, seed):
    size = drawn.draw(st.integers(1, count))
    labels = np.arange(count)
    images = np.repeat(labels, 4).reshape(count, 2, 2, 1) * 7
    got = list(batches(images, labels, size, seed=seed))
    assert len(got) == count // size
    assert all(i.shape == (size, 2, 2, 1) and (i[:, 0, 0, 0] == n * 7).all() for i, n in got)
    seen = np.concatenate([n for _, n in got])
    assert len(set(seen)) == len(seen) == count // size * size
    assert [n.tolist() for _, n in batches(images, labels, size, seed=seed)] == [
        n.tolist() for _, n in got
    ]


def test_batches_are_shuffled_by_the_seed():
    labels = np.arange(10)
    orders = [next(batches(labels, labels, 10, seed=seed))[1].tolist() for seed in range(3)]
    # The same on any processor and any NumPy.
    assert orders == [
        [3, 2, 1, 8, 6, 0, 7, 4, 5, 9],
        [9, 2, 4, 7, 5, 0, 8, 6, 3, 1],
        [7, 3, 6, 0, 8, 1, 4, 9, 5, 2],
    ]


def test_bad_batches():
    # At the call, not when the first batch is asked for.
    with pytest.raises(ValueError, match="batch_size=11 is not .*: use a whole number, 1 to 10"):
        batches(np.zeros(10), np.zeros(10), 11)
    with pytest.raises(ValueError, match="batch_size=0 is not"):
        batches(np.zeros(10), np.zeros(10), 0)
    with pytest.raises(ValueError, match="9 images and 10 labels"):
        batches(np.zeros(9), np.zeros(10), 2)


# MNIST


def arrays(train=5, test=3):
    """Give small arrays such as mnist.npz holds."""
    rng = np.random.default_rng(0)

    def some(n):
        return rng.integers(0, 256, (n, 28, 28), np.uint8), rng.integers(0, 10, n, np.uint8)

    (a, b), (c, d) = some(train), some(test)
    return {"x_train": a, "y_train": b, "x_test": c, "y_test": d}


def idx(array):
    head = bytes((0, 0, 8, array.ndim)) + np.array(array.shape, ">u4").tobytes()
    return head + array.tobytes()


def write_idx(folder, kept):
    for part, name in (("train", "train"), ("test", "t10k")):
        for key, kind in (("x", "images-idx3"), ("y", "labels-idx1")):
            raw = gzip.compress(idx(kept[f"{key}_{part}"]))
            (folder / f"{name}-{kind}-ubyte.gz").write_bytes(raw)


def check(found, kept):
    for (images, labels), part in zip(found, ("train", "test"), strict=True):
        x, y = kept[f"x_{part}"], kept[f"y_{part}"]
        assert images.dtype == np.float32 and images.shape == (*x.shape, 1)
        assert (images[..., 0] == x / np.float32(255)).all()
        assert labels.dtype == np.int64 and (labels == y).all()


@pytest.fixture
def source(tmp_path, monkeypatch):
    """Give a stand-in for the place that MNIST is fetched from: a file of this test's own."""
    there = tmp_path / "there" / "mnist.npz"
    there.parent.mkdir()
    kept = arrays()
    np.savez_compressed(there, **kept)
    monkeypatch.setattr(data, "MNIST_URL", there.as_uri())
    monkeypatch.setattr(data, "MNIST_SHA256", hashlib.sha256(there.read_bytes()).hexdigest())
    return there, kept


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_npz(tmp_path, save):
    kept = arrays()
    save(tmp_path / "mnist.npz", **kept)
    check(mnist(tmp_path), kept)
    check(mnist(str(tmp_path)), kept)


def test_idx(tmp_path):
    kept = arrays()
    write_idx(tmp_path, kept)
    check(mnist(tmp_path), kept)


def test_looks_where_keras_does(tmp_path, monkeypatch):
    kept = arrays()
    (tmp_path / ".keras/datasets").mkdir(parents=True)
    np.savez(tmp_path / ".keras/datasets/mnist.npz", **kept)
    monkeypatch.delenv("KERAS_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    check(mnist(), kept)
    monkeypatch.setenv("KERAS_HOME", str(tmp_path / "elsewhere"))
    with pytest.raises(FileNotFoundError, match="elsewhere"):
        mnist()


def test_neither(tmp_path):
    with pytest.raises(FileNotFoundError) as caught:
        mnist(tmp_path)
    text = str(caught.value)
    assert str(tmp_path) in text and "neither mnist.npz nor the four IDX files" in text
    assert "mnist(download=True)" in text and "digits()" in text


def test_some_idx_files_are_missing(tmp_path):
    write_idx(tmp_path, arrays())
    (tmp_path / "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(FileNotFoundError, match="of the four IDX files t10k-labels-idx1-ubyte.gz"):
        mnist(tmp_path)


def test_download(tmp_path, source):
    there, kept = source
    folder = tmp_path / "new" / "folder"
    check(mnist(folder, download=True), kept)
    assert [path.name for path in folder.iterdir()] == ["mnist.npz"]
    there.unlink()
    check(mnist(folder, download=True), kept)  # what is there is not fetched again


@pytest.mark.parametrize("change", ["cut", "flipped", "other"])
def test_a_bad_download_leaves_nothing(tmp_path, source, change):
    there, _ = source
    raw = there.read_bytes()
    there.write_bytes(
        {"cut": raw[:-9], "flipped": raw[:900] + bytes((raw[900] ^ 1,)) + raw[901:],
         "other": b"<html>not here</html>"}[change]
    )
    with pytest.raises(ValueError, match="is not MNIST .* nothing was kept, try again"):
        mnist(tmp_path / "new", download=True)
    assert list((tmp_path / "new").iterdir()) == []


def test_a_download_that_fails_leaves_nothing(tmp_path, source):
    there, _ = source
    there.unlink()
    with pytest.raises(ConnectionError) as caught:
        mnist(tmp_path / "new", download=True)
    assert "could not fetch" in str(caught.value) and "digits()" in str(caught.value)
    assert list((tmp_path / "new").iterdir()) == []


def test_the_known_file():
    assert data.MNIST_URL.startswith("https://") and data.MNIST_URL.endswith("/mnist.npz")
    assert len(bytes.fromhex(data.MNIST_SHA256)) == 32


def damaged(folder):
    with pytest.raises(ValueError) as caught:
        mnist(folder)
    text = str(caught.value)
    assert "is damaged" in text and "delete it and call mnist(download=True)" in text
    return text


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_a_flipped_bit_anywhere_is_noticed_or_does_not_matter(tmp_path, save):
    """Every 7th byte of a whole file; what stands for nothing (dates, say) may differ."""
    path, kept = tmp_path / "mnist.npz", arrays(1, 1)
    save(path, **kept)
    raw, noticed = path.read_bytes(), 0
    for where in range(0, len(raw), 7):
        path.write_bytes(raw[:where] + bytes((raw[where] ^ 1 << where % 8,)) + raw[where + 1 :])
        try:
            found = mnist(tmp_path)
        except ValueError as problem:
            assert f"{path} is damaged" in str(problem)
            noticed += 1
        else:
            check(found, kept)
    assert noticed > 0.8 * len(raw) / 7


@pytest.mark.parametrize("flag, at", [("compression method", 8), ("encrypted", 6)])
def test_an_npz_that_says_it_is_another_kind_of_zip(tmp_path, flag, at):
    path = tmp_path / "mnist.npz"
    np.savez(path, **arrays(1, 1))
    raw = bytearray(path.read_bytes())
    raw[raw.index(b"PK\1\2") + 2 + at] |= 1  # in the archive's table of contents
    path.write_bytes(raw)
    assert flag in damaged(tmp_path)


@few
@given(share=st.floats(0, 1, exclude_max=True))
def test_a_cut_npz_is_noticed(tmp_path_factory, share):
    folder = tmp_path_factory.mktemp("cut")
    file = io.BytesIO()
    np.savez(file, **arrays(1, 1))
    raw = file.getvalue()
    (folder / "mnist.npz").write_bytes(raw[: int(share * len(raw))])
    damaged(folder)


@pytest.mark.parametrize(
    "change, text",
    [
        ({"y_test": None}, "it holds no y_test"),
        ({"x_train": np.zeros((5, 28, 27), np.uint8)}, "uint8 [5, 28, 27], not uint8 [n, 28, 28]"),
        ({"x_train": np.zeros((5, 28, 28), np.float32)}, "float32 [5, 28, 28], not uint8"),
        ({"x_test": np.zeros((4, 28, 28), np.uint8)}, "labels are uint8 [3], not 4 whole numbers"),
        ({"y_train": np.array([0, 1, 2, 3, 10])}, "not digits from 0 to 9"),
        ({"y_train": np.array([0, 1, 2, 3, -1])}, "not digits from 0 to 9"),
        ({"y_train": np.zeros(5, np.float32)}, "labels are float32 [5], not 5 whole numbers"),
        ({"y_train": np.array([None] * 5)}, "allow_pickle"),
        ({"x_train": np.zeros((0, 28, 28), np.uint8), "y_train": np.zeros(0, np.uint8)}, "not dig"),
    ],
)
def test_an_npz_that_is_not_mnist(tmp_path, change, text):
    kept = {name: a for name, a in {**arrays(), **change}.items() if a is not None}
    np.savez(tmp_path / "mnist.npz", **kept)
    assert text in damaged(tmp_path)


def test_a_single_array_under_the_name_of_the_npz(tmp_path):
    with open(tmp_path / "mnist.npz", "wb") as file:
        np.save(file, np.zeros(3))
    assert "it is not a whole npz file" in damaged(tmp_path)


@pytest.mark.parametrize(
    "name", ["train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1"]
)
@pytest.mark.parametrize(
    "spoil, text",
    [
        (lambda raw: gzip.compress(raw[:-1]), "its header says"),
        (lambda raw: gzip.compress(raw + b"\0"), "its header says"),
        (lambda raw: gzip.compress(b"\1" + raw[1:]), "it starts with 010008"),
        (lambda raw: gzip.compress(raw[:3]), "it starts with 000008"),
        (lambda raw: gzip.compress(raw[:6]), ""),
        (lambda raw: gzip.compress(b""), "it starts with nothing"),
        (lambda raw: gzip.compress(raw)[:-4], ""),
        (lambda raw: gzip.compress(raw)[:-5] + b"\0\0\0\0\0", "CRC"),
        (lambda raw: raw, "ot a gzipped file"),
        (lambda raw: b"", "it starts with nothing"),
    ],
)
def test_a_damaged_idx_file(tmp_path, name, spoil, text):
    write_idx(tmp_path, arrays())
    path = tmp_path / f"{name}-ubyte.gz"
    path.write_bytes(spoil(gzip.decompress(path.read_bytes())))
    message = damaged(tmp_path)
    assert str(path) in message and text in message


def test_idx_counts_that_disagree(tmp_path):
    kept = arrays()
    kept["y_train"] = kept["y_train"][:4]
    write_idx(tmp_path, kept)
    assert "labels are uint8 [4], not 5 whole numbers" in damaged(tmp_path)
