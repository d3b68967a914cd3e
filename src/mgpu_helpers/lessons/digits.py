"""Handwritten digits that ship with the package.

Everything here is exact: whole numbers and one division a pixel, random numbers from PCG64's raw
stream. So the same call gives the same bits on every processor and with every NumPy.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from mgpu_helpers._formatting import whole_number

_SHIFT = 2  # pixels
_SHIFTS = list(itertools.product(range(-_SHIFT, _SHIFT + 1), repeat=2))  # down, right
_SHIFTS.remove((0, 0))
SMALLEST, LARGEST = 12, 512  # pixels: 8 and a margin of 2 on each side; still exact in float32
Examples = tuple[np.ndarray, np.ndarray]


def load(n: int | None = None, *, size: int = 28, seed: int = 0, test: bool = False) -> Examples:
    """Give n handwritten digits: images, float32 [n, size, size, 1] in 0..1, and labels, int64 [n].

    None gives every original of the part: 1437 for training, 360 (36 of each digit) for testing;
    no original is in both. Asked for more, the originals come first, then passes of copies, each
    moved by up to 2 pixels down and right; a copy repeats only after 25 passes. The seed decides
    the order and the moves, so a smaller n gives the start of a larger one.

    Some people wrote in both parts, so the accuracy on the test part is a little flattering.

    >>> images, labels = load(1000)
    >>> test_images, test_labels = load(test=True)

    Source: E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits, 1998, UCI Machine
    Learning Repository, doi 10.24432/C50P49, CC BY 4.0; the 1797 8x8 images of its test part, as
    scikit-learn carries them. See DIGITS_LICENSE.txt beside this file.
    """
    part = "test" if test else "train"
    with np.load(Path(__file__).with_name("digits.npz")) as file:
        originals, classes = file[f"{part}_images"], file[f"{part}_labels"]
    count = len(originals)
    if n is None:
        n = count
    n = whole_number("n", n, "a number of digits", 1, f"None for all {count}")
    size = whole_number("size", size, "a size in pixels", SMALLEST, most=LARGEST)

    bits = stream(seed)
    # Which move an original gets in which pass: a permutation of all moves, so that none repeats.
    moves = bits.random_raw(count * len(_SHIFTS)).reshape(count, -1).argsort(kind="stable")
    passes = -(-n // count)
    order = np.concatenate([_shuffle(bits, count) for _ in range(passes)])[:n]
    turn = np.arange(n) // count
    move = np.where(turn == 0, -1, moves[order, (turn - 1) % len(_SHIFTS)])

    scaled = _enlarge(originals, size * 5 // 7)
    inner = scaled.shape[1]
    margin = (size - inner) // 2
    images = np.zeros((n, size, size, 1), np.float32)
    for index, (down, right) in [(-1, (0, 0)), *enumerate(_SHIFTS)]:
        which = np.flatnonzero(move == index)
        top, left = margin + down, margin + right
        images[which, top : top + inner, left : left + inner, 0] = scaled[order[which]]
    return images, classes[order].astype(np.int64)


def batches(
    images: np.ndarray, labels: np.ndarray, batch_size: int, *, seed: int = 0
) -> Iterator[Examples]:
    """Give one epoch of shuffled batches of batch_size examples; what does not fill one is dropped.

    Another seed gives another order: pass the epoch's number.

    >>> len(list(batches(*load(1000), 128, seed=1)))
    7
    """
    count = len(labels)
    if len(images) != count:
        raise ValueError(f"{len(images)} images and {count} labels: give as many of each.")
    batch_size = whole_number("batch_size", batch_size, "a number of examples", 1, most=count)
    order = _shuffle(stream(seed), count)
    starts = range(0, count - batch_size + 1, batch_size)
    chosen = (order[start : start + batch_size] for start in starts)
    return ((images[some], labels[some]) for some in chosen)


def stream(seed: int) -> np.random.PCG64:
    """Start the stream of random bits that belongs to a seed, the same on every machine."""
    # Only the raw stream is promised to stay the same; Generator's methods may change with NumPy.
    return np.random.PCG64(whole_number("seed", seed, "a seed", 0))


def _shuffle(bits: np.random.PCG64, count: int) -> np.ndarray:
    return bits.random_raw(count).argsort(kind="stable")


def _enlarge(images: np.ndarray, inner: int) -> np.ndarray:
    """Scale images of 8x8 pixels in 0..16 to inner x inner in 0..1, bilinear, blank outside."""
    unit = 2 * inner  # positions and weights are counted in 1 / unit of an old pixel
    at = (2 * np.arange(inner) + 1) * 8 - inner  # the centre of each new pixel, may be below 0
    below, weight = at // unit, at % unit
    old = np.pad(images.astype(np.int32), ((0, 0), (1, 1), (1, 1)))
    near, far = (unit - weight).astype(np.int32), weight.astype(np.int32)
    rows = old[:, below + 1] * near[:, None] + old[:, below + 2] * far[:, None]
    both = rows[:, :, below + 1] * near + rows[:, :, below + 2] * far
    return both.astype(np.float32) / np.float32(16 * unit * unit)
