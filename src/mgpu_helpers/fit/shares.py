"""A batch in one part for each replica, and what a replica's part counts.

TensorFlow's own way cuts a batch of 5 for 4 replicas into 2, 2, 1 and nothing, and begins a thread
for each of them in every pass. Here a plain `tf.data` pipeline cuts each batch, and each replica
takes its part in the step. A pass begins in a few milliseconds, and every part knows its share.
"""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

# What part of the global batch the replica has that is traced at the moment; None without parts.
_share: contextvars.ContextVar[Any] = contextvars.ContextVar("share", default=None)


class Parts(NamedTuple):
    """A global batch as a worker has it: what its replicas take, and what it is of."""

    parts: tuple[Any, ...]
    examples: Any
    mark: Any  # a number that tells it from another batch


class Shared:
    """A dataset of `Parts`: what `fit` iterates, once for each pass."""

    def __init__(self, batches: Any, cut: Callable[..., Parts]) -> None:
        import tensorflow as tf

        self.batches = batches
        self.parts = batches.map(cut, num_parallel_calls=tf.data.AUTOTUNE).prefetch(2)
        # How often it would have begun before this `fit`, and what that would have taken of it.
        self.goes_on: Callable[[], tuple[int, int]] | None = None

    def __iter__(self) -> Iterator[Parts]:
        times, taken = self.goes_on() if self.goes_on else (0, 0)
        self.goes_on = None
        for _ in range(times):  # a shuffle has another order each time that it begins
            iter(self.parts)
        return iter(self.parts.skip(taken) if taken else self.parts)


def cutter(places: list[int], among: int) -> Callable[..., Parts]:
    """Make what cuts a batch into parts, as even as can be, and keeps those at these places."""
    import tensorflow as tf

    def cut(*batch: Any) -> Parts:
        whole = batch[0] if len(batch) == 1 else batch  # tf.data unpacks a tuple
        size = size_of(whole)
        ends = [(size * place // among, size * (place + 1) // among) for place in places]
        parts = [tf.nest.map_structure(lambda x, a=a, b=b: _slice(x, a, b), whole) for a, b in ends]
        return Parts(tuple(parts), size, _mark(whole))

    return cut


def _mark(batch: Any) -> Any:
    """Add up the first numbers of each tensor of a batch."""
    import tensorflow as tf

    mark = tf.zeros([], tf.float64)
    for each in tf.nest.flatten(batch, expand_composites=True):
        if isinstance(each, tf.Tensor) and (each.dtype.is_floating or each.dtype.is_integer):
            mark += tf.reduce_sum(tf.cast(tf.reshape(each, [-1])[:1000], tf.float64))
    return mark


def _slice(x: Any, begin: Any, end: Any) -> Any:
    import tensorflow as tf

    if isinstance(x, tf.SparseTensor):
        rest = tf.zeros([tf.rank(x) - 1], tf.int64)
        size = tf.cast(end - begin, tf.int64)
        shape = tf.concat([[size], x.dense_shape[1:]], 0)
        return tf.sparse.slice(x, tf.concat([[tf.cast(begin, tf.int64)], rest], 0), shape)
    return x if isinstance(x, tf.experimental.Optional) else x[begin:end]


def size_of(batch: Any) -> Any:
    """Count the examples of a batch: an int where its shape says it, else a tensor."""
    import tensorflow as tf

    flat = tf.nest.flatten(batch)
    first = next(each for each in flat if getattr(each, "shape", None) is not None)
    if first.shape.rank is not None and first.shape[0] is not None:
        return int(first.shape[0])
    if isinstance(first, tf.RaggedTensor):
        return tf.cast(first.nrows(), tf.int64)
    return tf.shape(first, tf.int64)[0]


def taking(function: Callable[..., Any], local: int) -> Callable[..., Any]:
    """Make a function for each of so many local replicas take its part of `Parts`."""
    import tensorflow as tf

    def of_a_replica(parts: Parts, *args: Any, **named: Any) -> Any:
        context = tf.distribute.get_replica_context()
        number = tf.get_static_value(context.replica_id_in_sync_group)
        part = parts.parts[int(number) % local]
        token = _share.set((size_of(part), parts.examples))
        try:
            return function(part, *args, **named)
        finally:
            _share.reset(token)

    return of_a_replica


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
    if isinstance(ours, int) and isinstance(all_of_them, int):
        return value * tf.cast(ours / all_of_them, value.dtype)
    return value * tf.cast(ours / tf.cast(all_of_them, tf.int64), value.dtype)


def unscaled(value: Any, by_share: bool = True) -> Any:
    """Divide by what `scaled` multiplies by; a replica without examples gives 0."""
    import tensorflow as tf

    return tf.math.divide_no_nan(value, scaled(tf.ones([], value.dtype), by_share))


def sized() -> bool:
    """Say whether the shapes say how many examples the replica has."""
    known = _share.get()
    return known is None or isinstance(known[0], int)
