"""A batch in one part for each replica, and what a replica's part counts.

TensorFlow's own way cuts a batch of 5 for 4 replicas into 2, 2, 1 and nothing, and begins threads
for each of them before and after every pass. Here the data stay what they are on one device, and
each replica takes its part of a batch in the step. So a pass begins as fast as on one device, and
every replica knows its share.
"""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from mgpu_helpers._train import HOST
from mgpu_helpers.devices.machine import cores
from mgpu_helpers.towers.shards import like, rows

# tf.data begins with a thread for each core, at most so many; tuning can only take some away.
UNTUNED = 16
# The examples of the replica that is traced at the moment, and those of all; None for what `fit`
# did not hand out.
_share: contextvars.ContextVar[Any] = contextvars.ContextVar("share", default=None)


class Whole(NamedTuple):
    """A global batch, of which each replica takes its part."""

    batch: Any


class Shared:
    """A dataset of global batches: what `fit` iterates, once for each pass."""

    def __init__(self, batches: Any) -> None:
        import tensorflow as tf

        self.batches = batches
        self.whole = tf.data.Dataset.zip(Whole(batches))
        if cores() <= UNTUNED and batches.options().autotune.enabled is None:
            # The thread that tunes may be told to end before it can see that it is to. Then it
            # sleeps on, and the next pass waits for it, at most as long as one took.
            options = tf.data.Options()
            options.autotune.enabled = False
            self.whole = self.whole.with_options(options)

    def __iter__(self) -> Iterator[Whole]:
        return iter(self.whole)


def _slice(x: Any, begin: Any, end: Any) -> Any:
    import tensorflow as tf

    if isinstance(x, tf.SparseTensor):
        size = tf.cast(end - begin, tf.int64)[None]
        first = tf.concat([tf.cast(begin, tf.int64)[None], 0 * x.dense_shape[1:]], 0)
        return tf.sparse.slice(x, first, tf.concat([size, x.dense_shape[1:]], 0))
    return x[begin:end] if hasattr(x, "shape") else x


def size_of(batch: Any) -> Any:
    """Count the examples of a batch: an int where its shape says it, else a tensor."""
    import tensorflow as tf

    flat = tf.nest.flatten(batch)
    return rows(next(each for each in flat if getattr(each, "shape", None) is not None))


def taking(function: Callable[..., Any], place: Callable[[], int], among: int) -> Any:
    """Make a function for each of so many replicas take the part at its place of a `Whole`."""
    import tensorflow as tf

    def of_a_replica(whole: Whole, *args: Any, **named: Any) -> Any:
        with tf.device(HOST), tf.name_scope("part"):
            size, i = size_of(whole.batch), place()
            begin, end = size * i // among, size * (i + 1) // among
            part = tf.nest.map_structure(lambda x: _slice(x, begin, end), whole.batch)
        token = _share.set((end - begin, size))
        try:
            return tf.nest.map_structure(shown, function(part, *args, **named))
        finally:
            _share.reset(token)

    return of_a_replica


def mark_of(batch: Any) -> Any:
    """Give the size of a batch, and the sum of the first numbers of its tensors."""
    import tensorflow as tf

    mark = tf.zeros([], tf.float64)
    for each in tf.nest.flatten(batch, expand_composites=True):
        if isinstance(each, tf.Tensor) and (each.dtype.is_floating or each.dtype.is_integer):
            mark += tf.reduce_sum(tf.cast(tf.reshape(each, [-1])[:1000], tf.float64))
    return tf.stack([tf.cast(size_of(batch), tf.float64), mark])


def strategy_here() -> Any:
    """Give the strategy of `fit` whose replica is traced at the moment, None elsewhere."""
    import tensorflow as tf

    context = tf.distribute.get_replica_context()
    strategy = None if context is None else context.strategy
    return strategy if getattr(strategy, "of_fit", False) else None


def scaled(value: Any, by_share: bool = True) -> Any:
    """Multiply a replica's mean by its share, so that those of all replicas add up to the mean."""
    import tensorflow as tf

    if not by_share or (known := _share.get()) is None:
        return value / tf.cast(strategy_here().num_replicas_in_sync, value.dtype)
    ours, all_of_them = known
    return value * like(ours / all_of_them, value)


def unscaled(value: Any, by_share: bool = True) -> Any:
    """Divide by what `scaled` multiplies by; a replica without examples gives 0."""
    import tensorflow as tf

    return tf.math.divide_no_nan(value, scaled(tf.ones([], value.dtype), by_share))


def as_share(value: Any) -> Any:
    """Remember of a loss that it is a replica's share: who shows it wants the replica's mean."""
    if hasattr(value, "shape"):
        value.is_share_of_loss = True
    return value


def shown(value: Any) -> Any:
    """Give the replica's mean of what is known to be its share, all else as it is."""
    return unscaled(value) if getattr(value, "is_share_of_loss", False) else value


def sized() -> bool:
    """Say whether the shapes say how many examples the replica has."""
    known = _share.get()
    return known is None or isinstance(known[0], int)
