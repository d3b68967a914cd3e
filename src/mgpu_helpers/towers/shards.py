"""Split a batch into shards, and run a function on every device with its shard: lesson 06."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mgpu_helpers._formatting import counted
from mgpu_helpers._train import HOST


def split(batch: Any, n: int, *, uneven: bool = False, into: str = "device") -> list[Any]:
    """Split a batch along its first axis into n shards: an array, a tensor, or a structure of them.

    Shards are of one size; with uneven=True the first ones may hold one example more than the last
    (as in `numpy.array_split`), and their gradients then need their sizes as weights. Where a
    graph does not know the size of the batch, it is checked at run time. It is cut on the host.
    `into` is what an error calls a shard's place.

    >>> [shard.tolist() for shard in split(np.arange(5), 2, uneven=True)]
    [[0, 1, 2], [3, 4]]
    """
    import tensorflow as tf

    with tf.device(HOST):
        leaves = [
            x if isinstance(x, np.ndarray) else tf.convert_to_tensor(x)
            for x in tf.nest.flatten(batch)
        ]
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
    """Give the share, 0 to 1, of a batch of `size` examples that each of n shards holds."""
    return [part / size for part in shard_sizes(size, n)]


def shard_sizes(size: Any, n: int) -> list[Any]:
    """Give the sizes of n shards, larger ones first; size may be a tensor."""
    return [(size + n - 1 - i) // n for i in range(n)]


def like(share: Any, x: Any) -> Any:
    """Give a share x's type; tf.cast would round a number of Python to float32 first."""
    import tensorflow as tf

    return tf.cast(share, x.dtype) if tf.is_tensor(share) else share


def rows(x: Any) -> Any:
    """Give the length of the first axis: a tensor where a graph does not know it yet."""
    import tensorflow as tf

    known = tf.TensorShape(x.shape)
    return tf.shape(x)[0] if known.rank is None or known[0] is None else known[0]


def _size(leaves: list[Any], n: int, uneven: bool, into: str) -> tuple[Any, list[Any]]:
    """Check the sizes of what is to be split; give the size, and the checks left to run time."""
    import tensorflow as tf

    over, checks = counted(n, into), []
    single = next((leaf for leaf in leaves if leaf.shape == ()), leaves)
    if n < 1 or single is not leaves or not leaves:
        raise ValueError(f"{single!r:.60} cannot be split over {over}: give arrays of examples.")

    def check(good: Any, text: str, *numbers: Any) -> None:
        if tf.is_tensor(good):
            checks.append(tf.debugging.Assert(good, [tf.strings.format(text, numbers)]))
        elif not good:
            raise ValueError(text.format(*numbers))

    size, *others = sorted(map(rows, leaves), key=tf.is_tensor)  # what is known first
    for other in others:
        text = "the batch has parts of {} and {} examples: give as many of each."
        check(tf.equal(size, other) if tf.is_tensor(other) else size == other, text, size, other)
    text = f"batch of {{}} is too small for {over}: give {n} or more examples, or use fewer."
    check(size >= n, text, size)
    if not uneven:
        low = size - size % n
        text = f"batch of {{}} does not divide over {over}: use {{}} or {{}}, or pass uneven=True."
        check((size < n) | (size % n < 1), text, size, low, low + n)
    return size, checks


def run(function: Callable[..., Any], devices: Sequence[str], *shards: Sequence[Any]) -> list[Any]:
    """Call the function once per device, on that device, with one shard of each list.

    In a classic graph the calls after the first reuse its variables. In a graph and in
    `tf.function` the devices work at the same time; eager code does one call after the other.

    >>> run(lambda x: 2 * x, ["/CPU:0", "/CPU:0"], [1, 2])
    [2, 4]
    """
    import tensorflow as tf

    from mgpu_helpers.devices.plan import checked

    outputs = []
    for i, (device, *pieces) in enumerate(zip(checked(devices), *shards, strict=True)):
        with tf.device(device), tf.name_scope(f"tower_{i}"), _scope(reuse=i > 0):
            outputs.append(function(*pieces))
    return outputs


def _scope(reuse: bool) -> contextlib.AbstractContextManager[Any]:
    """Share what `get_variable` makes; only a classic graph knows variables by their names."""
    import tensorflow.compat.v1 as tf1

    if tf1.executing_eagerly_outside_functions():
        return contextlib.nullcontext()
    here = tf1.get_variable_scope()
    return tf1.variable_scope(here, reuse=reuse, auxiliary_name_scope=False)


def make_parallel(
    function: Callable[..., Any], devices: Sequence[str], *, uneven: bool = False
) -> Callable[..., Any]:
    """Make a function that does the same with every device taking a shard of the batch.

    All arguments must be batches, and all results too: one row for each example. The host cuts
    the batches and joins the results. With uneven=True the size of the batch need not divide by
    the number of devices.

    Each call sends the weights that the function reads to the devices that have none. For many
    calls with the same weights, call it by `strategy.run` under `fit.strategy(plan)`, with a model
    made in the strategy's scope: then each device has a copy, and no weights cross. The function
    must not mix rows, as BatchNormalization does in training: each device sees only its shard.

    >>> make_parallel(tf.square, ["/CPU:0", "/CPU:0"])(tf.constant([1, 2, 3, 4])).numpy().tolist()
    [1, 4, 9, 16]
    """
    import tensorflow as tf

    def parallel(*args: Any, **batches: Any) -> Any:
        shards = split((args, batches), len(devices), uneven=uneven)
        outputs = run(lambda shard: function(*shard[0], **shard[1]), devices, shards)
        for shard, output in zip(shards, outputs, strict=True):
            check_rows(tf.nest.flatten(shard)[0], tf.nest.flatten(output))
        with tf.device(HOST):
            return tf.nest.map_structure(lambda *each: tf.concat(each, axis=0), *outputs)

    return parallel


def check_rows(given: Any, results: Sequence[Any]) -> None:
    """Check that what a function returned has a row for each example that it was given."""
    import tensorflow as tf

    wanted = tf.TensorShape(given.shape)[0]
    for value in results:
        if tf.is_tensor(value) and not isinstance(value, tf.Tensor):
            raise ValueError(
                f"the function returned a {type(value).__name__}, which those of shards cannot be "
                "put together to: return what its to_tensor() or tf.sparse.to_dense gives."
            )
        shape = tf.TensorShape(() if value is None else tf.convert_to_tensor(value).shape)
        if shape.rank == 0 or None not in (wanted, shape.rank, shape[0]) and shape[0] != wanted:
            what = counted(shape[0], "row") if shape.rank else "a single value"
            raise ValueError(
                f"the function returned {what} for a shard of {wanted or 'some'} examples: return "
                "one row for each example, and take sums and means afterwards."
            )
