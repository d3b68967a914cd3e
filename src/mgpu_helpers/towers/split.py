"""Split a batch into shards."""

from __future__ import annotations

from typing import Any

import numpy as np

from mgpu_helpers.wording import counted

# What nobody places goes there without a GPU, and to the first GPU with one.
HOST = "/CPU:0"


def split(
    batch: Any,
    n: int,
    *,
    uneven: bool = False,
    device: str | None = HOST,
    into: str = "device",
) -> list[Any]:
    """Split a batch along its first axis into n shards: an array, a tensor, or a structure of them.

    Shards are of one size; with uneven=True the first ones may hold one example more than the last
    (as in `numpy.array_split`), and their gradients then need the weights of `shares`. Where a
    graph does not know the size of the batch, it is checked at run time. It is cut on `device`: the
    host, unless you say so, and with None the surrounding one. `into` is what an error calls a
    shard's place.

    >>> [shard.tolist() for shard in split(np.arange(5), 2, uneven=True)]
    [[0, 1, 2], [3, 4]]
    """
    import tensorflow as tf

    from mgpu_helpers.devices.plan import placed

    leaves = tf.nest.flatten(batch)
    with placed(device):
        leaves = [x if isinstance(x, np.ndarray) else tf.convert_to_tensor(x) for x in leaves]
        size, checks = _size(leaves, n, uneven, into)
        sizes = shard_sizes(size, n)
        with tf.control_dependencies(checks):
            parts = [
                np.split(leaf, np.cumsum(sizes)[:-1])
                if isinstance(leaf, np.ndarray)
                else tf.split(leaf, sizes if uneven else n)
                for leaf in leaves
            ]
    return [tf.nest.pack_sequence_as(batch, shard) for shard in zip(*parts, strict=True)]


def shares(size: Any, n: int) -> list[Any]:
    """Give the share, 0 to 1, of a batch of `size` examples that each of n shards holds.

    >>> shares(5, 2)
    [0.6, 0.4]
    """
    return [part / size for part in shard_sizes(size, n)]


def shard_sizes(size: Any, n: int) -> list[Any]:
    """Give the sizes of n shards, larger ones first; size may be a tensor."""
    return [(size + n - 1 - i) // n for i in range(n)]


def rows(x: Any) -> int | None:
    """Give the length of the first axis; None where a graph does not know it, -1 without axes."""
    import tensorflow as tf

    shape = tf.TensorShape(x.shape)
    return -1 if shape.rank == 0 else shape[0]


def _size(leaves: list[Any], n: int, uneven: bool, into: str) -> tuple[Any, list[Any]]:
    """Check the sizes of what is to be split; give the size, and the checks left to run time."""
    import tensorflow as tf

    known, over, checks = [rows(leaf) for leaf in leaves], counted(n, into), []
    if n < 1 or not leaves or -1 in known:
        what = "a batch" if n < 1 else "a single value" if leaves else "an empty structure"
        raise ValueError(f"{what} cannot be split over {over}: give arrays or tensors of examples.")

    def check(good: Any, said: str, *numbers: Any) -> None:
        if tf.is_tensor(good):
            with tf.device(HOST):  # strings live nowhere else
                checks.append(tf.debugging.Assert(good, [tf.strings.format(said, numbers)]))
        elif not good:
            raise ValueError(said.format(*numbers))

    sizes = [
        tf.shape(leaf)[0] if length is None else length
        for leaf, length in zip(leaves, known, strict=True)
    ]
    size = next((length for length in known if length is not None), sizes[0])
    for other in sizes:
        if other is not size:
            same = tf.equal(other, size) if tf.is_tensor(other) else other == size
            said = "the batch has parts of {} and {} examples: give as many of each."
            check(same, said, size, other)
    said = f"batch of {{}} is too small for {over}: give {n} or more examples, or use fewer."
    check(size >= n, said, size)
    if not uneven:
        low = size - size % n
        said = f"batch of {{}} does not divide over {over}: use {{}} or {{}}, or pass uneven=True."
        check((size < n) | (size % n < 1), said, size, low, low + n)
    return size, checks
