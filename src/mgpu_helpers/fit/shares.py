"""A batch in one part for each replica, and what a replica's part counts.

TensorFlow's own way cuts a batch of 5 for 4 replicas into 2, 2, 1 and nothing, and begins threads
for each of them before and after every pass. Here the data stay what they are on one device, and
each replica takes its part of a batch in the step. So a pass begins as fast as on one device, and
every replica knows its share.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from mgpu_helpers._later import keras, tf
from mgpu_helpers._train import HOST
from mgpu_helpers.devices.machine import cores
from mgpu_helpers.fit._kinds import SUM, Terms, apart, asking, now, tracing
from mgpu_helpers.fit._workers import UntilOneEnds
from mgpu_helpers.towers.shards import like, rows

# tf.data begins with a thread for each core, at most so many; tuning can only take some away.
UNTUNED = 16
# The examples of the replica that is traced at the moment, and those of all; None for what `fit`
# did not hand out.
_share: contextvars.ContextVar[Any] = contextvars.ContextVar("share", default=None)
# The share of a batch that the piece or part has which is traced at the moment.
PIECE: contextvars.ContextVar[Any] = contextvars.ContextVar("piece", default=None)


@contextlib.contextmanager
def noted(what: contextvars.ContextVar[Any], value: Any) -> Iterator[None]:
    """Let others know something in the block."""
    token = what.set(value)
    try:
        yield
    finally:
        what.reset(token)


def as_part(share: Any) -> Any:
    """Let others know in the block which share of a batch, or of a piece of one, is computed."""
    return noted(PIECE, share if (outer := PIECE.get()) is None else outer * share)


class Whole(NamedTuple):
    """A global batch, of which each replica takes its part."""

    batch: Any


class Predicted(NamedTuple):
    """A global batch to predict, of which a replica that has no part computes some example too.

    TensorFlow's convolution of 0 examples fails on a processor; what it gives is cut off.
    """

    batch: Any


class Shared:
    """A dataset of global batches: what `fit` iterates, once for each pass."""

    def __init__(self, batches: Any) -> None:
        self.batches = batches
        self.whole = tf.data.Dataset.zip(Whole(batches))
        if cores() <= UNTUNED and batches.options().autotune.enabled is None:
            # The thread that tunes may be told to end before it can see that it is to. Then it
            # sleeps on, and the next pass waits for it, at most as long as one took.
            options = tf.data.Options()
            options.autotune.enabled = False
            self.whole = self.whole.with_options(options)
        self.asking: Any = None  # the strategy of several workers, of which one may have more

    def asks(self, strategy: Any) -> Shared:
        """Let several workers ask at each step whether all have a batch."""
        self.asking = strategy
        return self

    def __iter__(self) -> Iterator[Whole]:
        batches = iter(self.whole)
        return UntilOneEnds(batches, self.asking) if self.asking else batches


def _slice(x: Any, begin: Any, end: Any) -> Any:
    if isinstance(x, tf.SparseTensor):
        size = tf.cast(end - begin, tf.int64)[None]
        first = tf.concat([tf.cast(begin, tf.int64)[None], 0 * x.dense_shape[1:]], 0)
        part = tf.sparse.slice(x, first, tf.concat([size, x.dense_shape[1:]], 0))
        part.set_shape([None, *x.shape[1:]])
        return part
    return x[begin:end] if getattr(x, "shape", ()) else x


def size_of(batch: Any) -> Any:
    """Count the examples of a batch: an int where its shape says it, else a tensor."""
    flat = tf.nest.flatten(batch)
    return rows(next(each for each in flat if getattr(each, "shape", ())))


def part_of(batch: Any, begin: Any, end: Any) -> Any:
    """Give some examples of a batch."""
    return tf.nest.map_structure(lambda x: _slice(x, begin, end), batch)


def taking(function: Callable[..., Any], place: Callable[[], int], among: int, step: Any) -> Any:
    """Make a function for each of so many replicas take the part at its place of a whole batch.

    step makes what is known of the function's losses.
    """
    def of_a_replica(whole: Whole | Predicted, *args: Any, **named: Any) -> Any:
        with tf.device(HOST), tf.name_scope("part"):
            size, i = size_of(whole.batch), place()
            if isinstance(size, int) and size < among:  # or Keras divides by a 0 that it knows
                size = tf.compat.v1.placeholder_with_default(size, [])
            begin, end = size * i // among, size * (i + 1) // among
            first, last = begin, end
            fills = isinstance(whole, Predicted) and not isinstance(size, int)
            if fills:
                first = tf.minimum(begin, size - 1)
                last = tf.maximum(end, first + 1)
            part = part_of(whole.batch, first, last)
        known = step()
        if not tf.executing_eagerly():
            leaves = filter(tf.is_tensor, tf.nest.flatten(part, expand_composites=True))
            known.graph = tf.compat.v1.get_default_graph()
            known.examples = {x.op for x in leaves}
        with noted(_share, (end - begin, size)), tracing(known):
            given = outputs(function(part, *args, **named))
        return part_of(given, 0, end - begin) if fills else given

    return of_a_replica


def mark_of(batch: Any) -> Any:
    """Give the size of a batch, and the sum of the first numbers of its tensors."""
    mark = tf.zeros([], tf.float64)
    for each in tf.nest.flatten(batch, expand_composites=True):
        if isinstance(each, tf.Tensor) and (each.dtype.is_floating or each.dtype.is_integer):
            mark += tf.reduce_sum(tf.cast(tf.reshape(each, [-1])[:1000], tf.float64))
    return tf.stack([tf.cast(size_of(batch), tf.float64), mark])


def strategy_here() -> Any:
    """Give the strategy of `fit` whose replica is traced at the moment, None elsewhere."""
    if (step := now()) is not None and step.asking:
        return step.strategy
    context = tf.distribute.get_replica_context()
    strategy = None if context is None else context.strategy
    return strategy if getattr(strategy, "of_fit", False) else None


def scaled(value: Any, by_share: bool = True) -> Any:
    """Multiply a replica's mean by its share, so that those of all replicas add up to the mean."""
    if asking():
        return value
    if not by_share or (known := _share.get()) is None:
        return value / tf.cast(strategy_here().num_replicas_in_sync, value.dtype)
    ours, all_of_them = known
    return value * like(ours / all_of_them, value)


def unscaled(value: Any, by_share: bool = True) -> Any:
    """Divide by what `scaled` multiplies by; a replica without examples gives 0."""
    found = tf.math.divide_no_nan(value, scaled(tf.ones([], value.dtype), by_share))
    found.is_mean_of_replica = True
    return found


def as_share(value: Any) -> Any:
    """Remember of a loss that it is a replica's share: what is made of it has to know."""
    if hasattr(value, "shape") and not is_share(value):
        value.is_share_of_loss = True
        if (step := now()) and value.shape.rank == 0:
            step.shares.append((value, [(value, 1.0)]))
    return value


def is_share(value: Any) -> bool:
    """Say whether it is known that a value is a replica's share of the whole."""
    return getattr(value, "is_share_of_loss", False)


def terms_of(value: Any, what: str) -> Terms:
    """Give a replica's share of a scalar as a sum: what all replicas' add up to is one device's."""
    step = now()
    if is_share(value):
        return [(value, 1.0)]
    if step is None or PIECE.get() is not None and not step.pieces:  # a mean: it was asked
        return [(value, scaled(tf.ones([], value.dtype)))]
    known, rest = apart(value, step)
    terms = [(x, like(f, x) * like(times, x)) for _, of, f in known for x, times in of]
    if rest is not None:
        kind = step.kind(rest, value, what, not known)
        one = tf.ones([], value.dtype)
        if (part := _share.get()) is not None and not isinstance(part[0], int) and not asking():
            one = _unless_of_nothing(
                one, part[0], value,
                "A batch has fewer examples than there are replicas, and one would make "
                f"{what} of none: leave the last batch out, batch(size, drop_remainder=True).",
            )  # fmt: skip
        times = (one if kind.of == SUM else scaled(one)) / kind.times
        terms += [(value, times), *((x, -like(f * like(times, f), x)) for x, _, f in known)]
        step.shares.append((value, terms))
    return terms


def _unless_of_nothing(x: Any, count: Any, mean: Any, message: str) -> Any:
    """Give x, but stop where a mean is one of nothing: it is no number, nor is 0 times it."""
    with tf.device(HOST):
        some = tf.debugging.Assert(tf.logical_or(count > 0, tf.math.is_finite(mean)), [message])
    with tf.control_dependencies([some]):
        return tf.identity(x)


def workers_here() -> int:
    """Count the replicas of which one is traced at the moment, of a layout on several workers."""
    strategy = None if asking() else strategy_here()
    return 1 if strategy is None else strategy.num_replicas_in_sync


def of_workers(value: Any) -> Any:
    """Add up what each worker's rows have together; on one machine that is all."""
    if workers_here() == 1:
        return value
    return tf.distribute.get_replica_context().all_reduce("SUM", value)


def loss(value: Any, of: Any = "mean") -> Any:
    """Say in a `train_step` or a `compute_loss` what a loss is, where `fit` cannot find it out.

    of: "mean", a mean over the examples that the step was given; "sum", a sum over them; or a
    number, of what it is a mean: the words that a mask leaves, for instance. So the replicas of
    `fit.strategy` together compute what one device computes. On one device, and where a loss is
    computed of the whole batch, nothing changes.

    >>> mask, losses = tf.constant([1.0, 0.0, 1.0]), tf.constant([1.0, 2.0, 3.0])
    >>> count = tf.reduce_sum(mask)
    >>> float(loss(tf.math.divide_no_nan(tf.reduce_sum(mask * losses), count), count))
    2.0
    """
    if isinstance(of, str) and of not in ("mean", "sum"):
        raise ValueError(f'a loss is a "mean", a "sum", or a mean of a number, not {of!r}.')
    if (share := PIECE.get()) is not None and isinstance(of, str) and of == "sum":
        value = value / like(share, value)  # all pieces are averaged by their shares
    in_pieces = share is not None or (step := now()) is not None and step.pieces
    if in_pieces and not isinstance(of, str):
        raise ValueError(
            "a loss is a mean of a number that each piece or part of a batch counts for itself, "
            "and what they give is averaged by their examples: use fit.loss with a mean or a sum, "
            "or compute the loss of the whole batch, without pieces and not in a layer."
        )
    if not strategy_here():
        return value
    if asking() or isinstance(of, str) and of == "sum":
        return as_share(tf.identity(value))
    if isinstance(of, str):
        return as_share(scaled(value))
    count = tf.cast(of, value.dtype)
    of_all = tf.distribute.get_replica_context().all_reduce("SUM", count)
    message = "A replica has nothing to take a mean of: divide with tf.math.divide_no_nan."
    value = _unless_of_nothing(value, count, value, message)
    return as_share(value * tf.math.divide_no_nan(count, of_all))


def share_of(value: Any, what: str) -> Any:
    """Give a replica's share of a scalar, known as one."""
    if is_share(value):
        return value
    return as_share(tf.add_n([like(x * times, value) for x, times in terms_of(value, what)]))


def shown(value: Any) -> Any:
    """Give the replica's mean of what is known to be its share, all else as it is."""
    return unscaled(value) if is_share(value) else value


def outputs(given: Any) -> Any:
    """Give what a step gives so that the mean of all replicas is what one device gives."""
    step, strategy = now(), strategy_here()

    def mean(path: Any, value: Any) -> Any:
        numeric = isinstance(value, tf.Tensor) and value.shape.rank == 0
        if not numeric or not (value.dtype.is_floating or value.dtype.is_integer):
            return value
        if step is None or not step.own:
            return shown(value)
        value = value if value.dtype.is_floating else tf.cast(value, tf.float64)
        share = share_of(value, f"{'/'.join(map(str, path)) or 'a number'} of what its step gives")
        return share if strategy is None else share * strategy.num_replicas_in_sync

    flat = keras.tree.flatten_with_path(given)
    return keras.tree.pack_sequence_as(given, [mean(*each) for each in flat])


def sized() -> bool:
    """Say whether the shapes say how many examples the replica has."""
    known = _share.get()
    return known is None or isinstance(known[0], int)
