"""Average the gradients of towers in a ring of devices: the ring of lesson 07."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mgpu_helpers.towers.average import by_variable
from mgpu_helpers.towers.run import run
from mgpu_helpers.towers.split import shard_sizes
from mgpu_helpers.wording import counted


def _ring(vectors: Sequence[Any], devices: Sequence[str]) -> list[Any]:
    import tensorflow as tf

    n = len(vectors)
    sizes = shard_sizes(vectors[0].shape[0], n)
    pieces = run(lambda vector: tf.split(vector, sizes), devices, vectors)
    for turn in range(2 * (n - 1)):
        for i in range(n):
            piece, neighbour = (i - turn) % n, (i + 1) % n
            with tf.device(devices[neighbour]):
                came = tf.identity(pieces[i][piece])
                own = pieces[neighbour][piece]
                pieces[neighbour][piece] = came + own if turn < n - 1 else came
    return run(lambda own: tf.concat(own, axis=0) / n, devices, pieces)


def ring(tower_gradients: Sequence[Sequence[Any]], devices: Sequence[str]) -> list[list[Any]]:
    """Average dense gradients in a ring of devices, and give each device its own copy.

    Every device cuts its gradients into n pieces and sends a piece to its neighbour, which adds its
    own, n-1 times; then the finished pieces go round, n-1 times. So 2(n-1)/n of the parameters go
    into and out of each device, give or take an element or two where n does not divide them. A
    gradient that is None counts as zero; it stays None where every tower has none.

    >>> [g.numpy().tolist() for g, in ring([[np.array([1.0])], [np.array([3.0])]], ["/CPU:0"] * 2)]
    [[2.0], [2.0]]
    """
    import tensorflow as tf

    from mgpu_helpers.devices.plan import checked

    columns = by_variable(tower_gradients)
    if len(devices) != len(tower_gradients):
        raise ValueError(
            f"{counted(len(devices), 'device')} and {len(tower_gradients)} towers: give as many."
        )
    devices = checked(devices)
    like = [next((g for g in column if g is not None), None) for column in columns]
    used = [(column, g) for column, g in zip(columns, like, strict=True) if g is not None]
    if any(isinstance(g, tf.IndexedSlices) for column in columns for g in column):
        raise ValueError(
            "a ring adds dense gradients, and one is tf.IndexedSlices: use average(), or make it "
            "dense with tf.convert_to_tensor."
        )
    kinds = sorted({f"{g.dtype.name} {g.shape}" for _, g in used})
    if len({g.dtype for _, g in used}) > 1 or not all(g.shape.is_fully_defined() for _, g in used):
        raise ValueError(
            "a ring needs gradients of one type and of known shapes, not "
            f"{', '.join(kinds)}: use average()."
        )
    vectors, results = [], []
    for i, device in enumerate(devices):
        with tf.device(device):
            own = [
                tf.zeros(g.shape, g.dtype) if column[i] is None else column[i] for column, g in used
            ]
            vectors.append(tf.concat([tf.reshape(g, [-1]) for g in own], axis=0))
    lengths = [g.shape.num_elements() for _, g in used]
    for device, vector in zip(devices, _ring(vectors, devices), strict=True):
        with tf.device(device):
            parts = iter(tf.split(vector, lengths))
            results.append([None if g is None else tf.reshape(next(parts), g.shape) for g in like])
    return results
