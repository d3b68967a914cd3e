"""Handwritten digits that ship with the package, and MNIST when it is there.

Everything here is exact: whole numbers and one division a pixel, random numbers from PCG64's raw
stream. So the same call gives the same bits on every processor and with every NumPy.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import http.client
import os
import shutil
import tempfile
import urllib.request
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from mgpu_helpers.wording import whole

MNIST_URL = "https://storage.googleapis.com/tensorflow/tf-keras-datasets/mnist.npz"
MNIST_SHA256 = "731c5ac602752760c8e48fbffcf8c3b850d9dc2a2aedcf2cc48468fc17b673d1"
SMALLEST, LARGEST = 12, 512  # pixels: 8 and a margin of 2 on each side; still exact in float32

_SHIFT = 2  # pixels
_SHIFTS = [
    (down, right)
    for down in range(-_SHIFT, _SHIFT + 1)
    for right in range(-_SHIFT, _SHIFT + 1)
    if (down, right) != (0, 0)
]
_IDX = (
    ("train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"),
    ("t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"),
)

Examples = tuple[np.ndarray, np.ndarray]


def digits(
    n: int | None = None, *, size: int = 28, seed: int = 0, test: bool = False
) -> Examples:
    """Give n handwritten digits: images, float32 [n, size, size, 1] in 0..1, and labels, int64 [n].

    None gives every original of the part: 1437 for training, 360 (36 of each digit) for testing;
    no original is in both. Asked for more, the originals come first, then passes of copies, each
    moved by up to 2 pixels down and right; a copy repeats only after 25 passes. The seed decides
    the order and the moves, so a smaller n gives the start of a larger one.

    Some people wrote in both parts, so the accuracy on the test part is a little flattering.

    Source: E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits, 1998, UCI Machine
    Learning Repository, doi 10.24432/C50P49, CC BY 4.0; the 1797 8x8 images of its test part, as
    scikit-learn carries them. See DIGITS_LICENSE.txt beside this file.
    """
    part = "test" if test else "train"
    with np.load(Path(__file__).with_name("digits.npz")) as file:
        originals, classes = file[f"{part}_images"], file[f"{part}_labels"]
    count = len(originals)
    n = count if n is None else whole("n", n, "a number of digits", 1, f"None for all {count}")
    size = whole("size", size, "a size in pixels", SMALLEST, most=LARGEST)

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
    """
    count = len(labels)
    if len(images) != count:
        raise ValueError(f"{len(images)} images and {count} labels: give as many of each.")
    batch_size = whole("batch_size", batch_size, "a number of examples", 1, most=count)
    order = _shuffle(stream(seed), count)
    starts = range(0, count - batch_size + 1, batch_size)
    chosen = (order[start : start + batch_size] for start in starts)
    return ((images[some], labels[some]) for some in chosen)


def mnist(
    directory: str | os.PathLike[str] | None = None, *, download: bool = False
) -> tuple[Examples, Examples]:
    """Give MNIST as ((train images, labels), (test images, labels)), shaped as `digits` does.

    Looks in the directory (None: where Keras keeps it) for mnist.npz, then for the four IDX files
    (train-images-idx3-ubyte.gz and so on). Where neither is there, download=True fetches the 11 MB
    of mnist.npz into the directory; nothing that is there is ever overwritten.
    """
    home = os.environ.get("KERAS_HOME") or "~/.keras"
    folder = Path(directory if directory is not None else Path(home) / "datasets").expanduser()
    archive = folder / "mnist.npz"
    idx = [folder / name for pair in _IDX for name in pair]
    missing = [path.name for path in idx if not path.exists()]
    if archive.exists():
        return _from_npz(archive)
    if not missing:
        return tuple(_from_idx(folder / images, folder / labels) for images, labels in _IDX)
    if download:
        _download(archive)
        return _from_npz(archive)
    what = "neither mnist.npz nor the four IDX files" if len(missing) == 4 else (
        f"no mnist.npz, and of the four IDX files {' and '.join(missing)} missing"
    )
    raise FileNotFoundError(
        f"MNIST is not here: {folder} holds {what}; call mnist(download=True) to fetch 11 MB, put "
        f"the file from {MNIST_URL} there, or use digits(), which needs no download."
    )


def stream(seed: int) -> np.random.PCG64:
    """Start the stream of random bits that belongs to a seed, the same on every machine."""
    # Only the raw stream is promised to stay the same; Generator's methods may change with NumPy.
    return np.random.PCG64(whole("seed", seed, "a seed", 0))


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


def _download(target: Path) -> None:
    """Fetch mnist.npz; the file appears whole and checked, or not at all."""
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=".mnist-", dir=target.parent)
    try:
        with open(handle, "wb") as file:
            try:
                with urllib.request.urlopen(MNIST_URL, timeout=30) as answer:
                    shutil.copyfileobj(answer, file)
            except (OSError, ValueError, http.client.HTTPException) as problem:
                raise ConnectionError(
                    f"could not fetch {MNIST_URL} ({problem}): put that file at {target} by hand, "
                    "or use digits(), which needs no download."
                ) from problem
        found = hashlib.sha256(Path(name).read_bytes()).hexdigest()
        if found != MNIST_SHA256:
            size = Path(name).stat().st_size
            raise ValueError(
                f"what {MNIST_URL} sent is not MNIST ({size} bytes, sha256 {found[:12]}…, not "
                f"{MNIST_SHA256[:12]}…): nothing was kept, try again."
            )
        os.chmod(name, 0o644)
        os.replace(name, target)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)


def _from_npz(path: Path) -> tuple[Examples, Examples]:
    names = ("x_train", "y_train", "x_test", "y_test")
    with _damage(path):
        if not zipfile.is_zipfile(path):
            raise ValueError("it is not a whole npz file")
        with np.load(path) as file:  # reading an array checks its checksum
            if absent := [name for name in names if name not in file]:
                raise ValueError(f"it holds no {' and no '.join(absent)}")
            a, b, c, d = (file[name] for name in names)
        return _examples(a, b), _examples(c, d)


def _from_idx(images: Path, labels: Path) -> Examples:
    with _damage(images):
        pictures = _read_idx(images, 3)
    with _damage(labels):
        return _examples(pictures, _read_idx(labels, 1))


def _read_idx(path: Path, rank: int) -> np.ndarray:
    """Read an IDX file: two zero bytes, 8 (bytes), the rank, big-endian sizes, then the bytes."""
    with gzip.open(path) as file:
        raw = file.read()
    if raw[:4] != bytes((0, 0, 8, rank)):
        raise ValueError(f"it starts with {raw[:4].hex() or 'nothing'}, not 000008{rank:02x}")
    shape = tuple(int(size) for size in np.frombuffer(raw, ">u4", rank, 4))
    expected = 4 + 4 * rank + int(np.prod(shape, dtype=object))
    if len(raw) != expected:
        raise ValueError(f"it holds {len(raw)} bytes, and its header says {expected}")
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * rank).reshape(shape)


def _examples(images: np.ndarray, labels: np.ndarray) -> Examples:
    """Check what a file held and give it as `digits` does."""
    if images.dtype != np.uint8 or images.shape[1:] != (28, 28):
        raise ValueError(
            f"its images are {images.dtype} {list(images.shape)}, not uint8 [n, 28, 28]"
        )
    if labels.dtype.kind not in "iu" or labels.shape != images.shape[:1]:
        raise ValueError(
            f"its labels are {labels.dtype} {list(labels.shape)}, not {len(images)} whole numbers"
        )
    if labels.size == 0 or labels.min() < 0 or labels.max() > 9:
        raise ValueError("its labels are not digits from 0 to 9")
    return images[..., None].astype(np.float32) / np.float32(255), labels.astype(np.int64)


@contextlib.contextmanager
def _damage(path: Path) -> Iterator[None]:
    """Say which file is damaged, and what to do."""
    try:
        yield
    except PermissionError:
        raise
    except (
        ValueError, OSError, EOFError, RuntimeError, zlib.error, zipfile.BadZipFile
    ) as problem:
        raise ValueError(
            f"{path} is damaged: {problem or type(problem).__name__}; delete it and call "
            "mnist(download=True), or put a good copy there."
        ) from problem
