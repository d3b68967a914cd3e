"""A tower per device: split a batch, run a function on every device, average the gradients.

Lesson 06 builds the first half in front of the reader, lesson 07 the second.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mgpu_helpers.devices import placed
from mgpu_helpers.wording import counted

HOST = "/CPU:0"  # what nobody places goes there without a GPU, and to the first GPU with one


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
    """
    import tensorflow as tf

    leaves = tf.nest.flatten(batch)
    with placed(device):
        leaves = [x if isinstance(x, np.ndarray) else tf.convert_to_tensor(x) for x in leaves]
        size, checks = _size(leaves, n, uneven, into)
        sizes = _sizes(size, n)
        with tf.control_dependencies(checks):
            parts = [
                np.split(leaf, np.cumsum(sizes)[:-1])
                if isinstance(leaf, np.ndarray)
                else tf.split(leaf, sizes if uneven else n)
                for leaf in leaves
            ]
    return [tf.nest.pack_sequence_as(batch, shard) for shard in zip(*parts, strict=True)]


def shares(size: Any, n: int) -> list[Any]:
    """Give the share of a batch of `size` that each of the n shards of `split` holds; sum 1."""
    return [part / size for part in _sizes(size, n)]


def run(function: Callable[..., Any], devices: Sequence[str], *shards: Sequence[Any]) -> list[Any]:
    """Call the function once per device, on that device, with one shard of each list.

    In a classic graph the calls after the first reuse its variables. In a graph and in
    `tf.function` the devices work at the same time; eager code does one call after the other.
    """
    import tensorflow as tf

    if not devices or any(len(each) != len(devices) for each in shards):
        given = ", ".join(str(len(each)) for each in shards) or "no"
        raise ValueError(
            f"{counted(len(devices), 'device')} and {given} shards: give one shard for each device."
        )
    results = []
    for i, device in enumerate(devices):
        with contextlib.ExitStack() as stack:
            if not tf.compat.v1.executing_eagerly_outside_functions():
                here = tf.compat.v1.get_variable_scope()
                shared = tf.compat.v1.variable_scope(here, reuse=i > 0, auxiliary_name_scope=False)
                stack.enter_context(shared)
            stack.enter_context(tf.device(device))
            stack.enter_context(tf.name_scope(f"tower_{i}"))
            results.append(function(*(each[i] for each in shards)))
    return results


def make_parallel(
    function: Callable[..., Any], devices: Sequence[str], *, uneven: bool = False
) -> Callable[..., Any]:
    """Make a function that does the same with every device taking a shard of the batch.

    All arguments must be batches, and all results too: one row for each example. The host cuts
    the batches and joins the results.
    """
    import tensorflow as tf

    def parallel(*args: Any, **kwargs: Any) -> Any:
        given = split((args, kwargs), len(devices), uneven=uneven)
        results = run(lambda shard: function(*shard[0], **shard[1]), devices, given)
        for shard, result in zip(given, results, strict=True):
            _check_rows(tf.nest.flatten(shard), tf.nest.flatten(result))
        with tf.device(HOST):
            return tf.nest.map_structure(lambda *parts: tf.concat(parts, axis=0), *results)

    return parallel


def average(
    tower_gradients: Sequence[Sequence[Any]],
    *,
    weights: Sequence[Any] | None = None,
    device: str | None = HOST,
) -> list[Any]:
    """Average each variable's gradient over the towers, on `device`: the host, unless you say so.

    None leaves the place to the surrounding `tf.device`.

    Weights, one a tower, are those of `numpy.average`: the sizes of the shards, or `shares`. A
    gradient that is None counts as zero; it stays None where every tower has none. Sparse ones
    (`tf.IndexedSlices`) stay sparse unless a tower has a dense one.
    """
    import tensorflow as tf

    columns, n = _columns(tower_gradients), len(tower_gradients)
    known = [w for w in (() if weights is None else weights) if not tf.is_tensor(w)]
    if weights is not None and (
        len(weights) != n or min(known, default=0) < 0 or len(known) == n and sum(known) == 0
    ):
        raise ValueError(
            f"weights {list(weights)} do not fit {counted(n, 'tower')}: give one for each, none "
            "below 0 and not all 0."
        )

    def times(gradient: Any, factor: Any) -> Any:
        factor = tf.cast(factor, gradient.dtype) if tf.is_tensor(factor) else float(factor)
        return tf.math.scalar_mul(factor, gradient)  # dense or sparse

    def mean(column: tuple[Any, ...]) -> Any:
        pairs = [(g, w) for g, w in zip(column, by, strict=True) if g is not None]
        there = [g if w is None else times(g, w) for g, w in pairs]
        if not there:
            return None
        if all(isinstance(g, tf.IndexedSlices) for g in there):
            values, indices = ([getattr(g, a) for g in there] for a in ("values", "indices"))
            slices = tf.concat(values, axis=0), tf.concat(indices, axis=0)
            summed = tf.IndexedSlices(*slices, there[0].dense_shape)
        else:
            summed = tf.add_n([tf.convert_to_tensor(g) for g in there])
        return times(summed, 1 / n) if weights is None else summed

    with placed(device):
        by = [None] * n if weights is None else [w / sum(weights) for w in weights]
        return [mean(column) for column in columns]


def ring(tower_gradients: Sequence[Sequence[Any]], devices: Sequence[str]) -> list[list[Any]]:
    """Average dense gradients in a ring of devices, and give each device its own copy.

    Every device cuts its gradients into n pieces and sends a piece to its neighbour, which adds its
    own, n-1 times; then the finished pieces go round, n-1 times. So 2(n-1)/n of the parameters go
    into and out of each device, give or take an element or two where n does not divide them.
    """
    import tensorflow as tf

    columns = _columns(tower_gradients)
    n = len(devices)
    if n != len(tower_gradients):
        raise ValueError(f"{counted(n, 'device')} and {len(tower_gradients)} towers: give as many.")
    empty = [all(g is None for g in column) for column in columns]
    used = [column for column, none in zip(columns, empty, strict=True) if not none]
    like = [next(g for g in column if g is not None) for column in used]
    if any(isinstance(g, tf.IndexedSlices) for column in used for g in column):
        raise ValueError(
            "a ring adds dense gradients, and one is tf.IndexedSlices: use average(), or make it "
            "dense with tf.convert_to_tensor."
        )
    if len({g.dtype for g in like}) > 1 or not all(g.shape.is_fully_defined() for g in like):
        raise ValueError(
            f"a ring needs gradients of one type and of known shapes, not "
            f"{', '.join(sorted({f'{g.dtype.name} {g.shape}' for g in like}))}: use average()."
        )
    pieces = []  # pieces[i][k]: what device i holds of piece k
    lengths = [g.shape.num_elements() for g in like]
    for i, device in enumerate(devices):
        with tf.device(device):
            own = [column[i] for column in used]
            flat = [
                tf.zeros(length, g.dtype) if o is None else tf.reshape(o, [-1])
                for o, g, length in zip(own, like, lengths, strict=True)
            ]
            pieces.append(tf.split(tf.concat(flat, axis=0), _sizes(sum(lengths), n)))
    for step in range(n - 1):
        for i in range(n):
            k, to = (i - step) % n, (i + 1) % n
            with tf.device(devices[to]):
                pieces[to][k] = pieces[i][k] + pieces[to][k]
    for i in range(n):
        with tf.device(devices[i]):
            pieces[i][(i + 1) % n] /= n  # the piece that has been all the way round
    for step in range(n - 1):
        for i in range(n):
            k, to = (i + 1 - step) % n, (i + 1) % n
            with tf.device(devices[to]):
                pieces[to][k] = tf.identity(pieces[i][k])
    results = []
    for i, device in enumerate(devices):
        with tf.device(device):
            flat = tf.split(tf.concat(pieces[i], axis=0), lengths)
            whole = iter([tf.reshape(f, g.shape) for f, g in zip(flat, like, strict=True)])
            results.append([None if none else next(whole) for none in empty])
    return results


def check_finite(
    tower_gradients: Sequence[Sequence[Any]], names: Sequence[str] | None = None
) -> list[list[Any]]:
    """Give the gradients back, checked where they are: running one that is not finite is an error.

    It is an InvalidArgumentError that names the tower and the variable (by number where names is
    None), in a graph, in `tf.function` and in eager code.
    """
    import tensorflow as tf

    def checked(gradient: Any, tower: int, index: int) -> Any:
        if gradient is None:
            return None
        which = f"variable {index}" if names is None else names[index]
        said = f"the gradient of {which} in tower {tower} is not finite"
        sparse = isinstance(gradient, tf.IndexedSlices)
        values = gradient.values if sparse else gradient
        with tf.device(values.device):
            values = tf.debugging.check_numerics(values, said)
        if sparse:
            return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
        return values

    return [
        [checked(gradient, i, k) for k, gradient in enumerate(gradients)]
        for i, gradients in enumerate(tower_gradients)
    ]


def _sizes(size: Any, n: int) -> list[Any]:
    """Give the sizes of n shards, larger ones first; size may be a tensor."""
    return [(size + n - 1 - i) // n for i in range(n)]


def _rows(x: Any) -> int | None:
    """Give the length of the first axis; None where a graph does not know it, -1 without axes."""
    import tensorflow as tf

    shape = tf.TensorShape(x.shape)
    return -1 if shape.rank == 0 else shape[0]


def _size(leaves: list[Any], n: int, uneven: bool, into: str) -> tuple[Any, list[Any]]:
    """Check the sizes of what is to be split; give the size, and the checks left to run time."""
    import tensorflow as tf

    rows = [_rows(leaf) for leaf in leaves]
    known = sorted(set(rows) - {None})
    apart = "the batch has parts of {} and {} examples: give as many of each."
    over = counted(n, into)
    if n < 1 or not rows or -1 in known:
        what = "an empty structure" if not rows else "a single value" if n > 0 else "a batch"
        raise ValueError(f"{what} cannot be split over {over}: give arrays or tensors of examples.")
    if len(known) > 1:
        raise ValueError(apart.format(*known[:2]))
    unknown = [leaf for leaf, r in zip(leaves, rows, strict=True) if r is None]
    size = known[0] if known else tf.shape(unknown[0])[0]
    low = size - size % n
    wrong = [
        (size < 1, f"the batch is empty: give {over} at least one example each.", ()),
        (
            (size > 0) & (size < n),
            f"batch of {{}} is too small for {over}: give {n} examples or more, or use fewer.",
            (size,),
        ),
        (
            (size > n) & (size % n > 0) & (not uneven),
            f"batch of {{}} does not divide over {over}: use {{}} or {{}}, or pass uneven=True.",
            (size, low, low + n),
        ),
    ]
    if known:
        for is_wrong, said, numbers in wrong:
            if is_wrong:
                raise ValueError(said.format(*numbers))
        wrong = []
    for leaf in unknown if known else unknown[1:]:
        rest = tf.shape(leaf)[0]
        wrong.append((tf.not_equal(rest, size), apart, (size, rest)))
    with tf.device(HOST):  # strings live nowhere else
        return size, [
            tf.debugging.Assert(tf.logical_not(is_wrong), [tf.strings.format(said, numbers)])
            for is_wrong, said, numbers in wrong
        ]


def _check_rows(given: list[Any], results: list[Any]) -> None:
    """Check that what a function returned has a row for each example that it was given."""
    import tensorflow as tf

    rows = _rows(given[0])
    for value in results:
        got = -1 if value is None else _rows(tf.convert_to_tensor(value))
        if got == -1 or None not in (rows, got) and rows != got:
            what = "None" if value is None else "a single value" if got == -1 else f"{got} rows"
            raise ValueError(
                f"the function returned {what} for a shard of {rows or 'some'} examples: return "
                "one row for each example, and take sums and means of what make_parallel returns."
            )


def _columns(tower_gradients: Sequence[Sequence[Any]]) -> list[tuple[Any, ...]]:
    """Check the towers' gradients and give them by variable."""
    import tensorflow as tf

    counts = [len(tower) for tower in tower_gradients]
    if len(set(counts)) != 1:
        raise ValueError(
            f"the towers hold {', '.join(map(str, counts)) or 'no'} gradients: give each tower's "
            "for the same variables, in the same order."
        )
    tower_gradients = [
        [tf.convert_to_tensor(g) if isinstance(g, np.ndarray | np.generic) else g for g in tower]
        for tower in tower_gradients
    ]
    columns = list(zip(*tower_gradients, strict=True))
    for index, column in enumerate(columns):
        if any(isinstance(g, tuple | list) for g in column):
            raise ValueError(
                "the towers hold pairs of gradient and variable: give the gradients only, "
                "[gradient for gradient, variable in pairs]."
            )
        known = [g for g in column if g is not None]
        if not all(known[0].shape.is_compatible_with(g.shape) for g in known):
            raise ValueError(
                f"gradient {index} has shapes {' and '.join(str(g.shape) for g in known)} in the "
                "towers: give the same variables in the same order."
            )
    if all(g is None for column in columns for g in column):
        raise ValueError(
            "every gradient is None: the loss does not depend on these variables, or a tape did "
            "not watch them."
        )
    return columns
