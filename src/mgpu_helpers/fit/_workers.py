"""What several workers tell each other: that they read the same data, as far and in one order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from mgpu_helpers import _private
from mgpu_helpers._later import tf

UNKNOWN = ", -1 without an end and -2 where it is not known"
SAME = (
    "Give each of them the same data in the same order, as keras.utils.set_random_seed(1) or "
    "fit.batches(x, y, shuffle=True) does, and folders that all of them see."
)


def meet(strategy: Any) -> None:
    """Wait until all workers are here."""
    of_all(strategy, [0])


def of_all(strategy: Any, numbers: Any) -> Any:
    """Give some numbers of each worker: an array with a row for each."""
    return of_replicas(strategy, [numbers] * strategy.local)[:: strategy.local]


def of_replicas(strategy: Any, rows: Any) -> Any:
    """Give a row of each replica, where this worker has one of each of its own."""
    rows = np.array(rows, np.float64)
    if strategy.workers == 1:
        return rows
    first = strategy.worker * strategy.local

    def row(context: Any) -> Any:
        return tf.constant(rows[context.replica_id_in_sync_group - first])[None]

    if strategy.gathers is None:  # kept, since eager gathering is traced anew at each call
        strategy.gathers = tf.function(lambda each: strategy.gather(each, 0), autograph=False)
    every = strategy.gathers(strategy.experimental_distribute_values_from_function(row))
    return every.numpy()


def compare(strategy: Any, named: dict[str, Any], advice: str = SAME) -> None:
    """Raise on every worker where one has another number, of which each has a name."""
    columns = of_all(strategy, tf.stack([tf.cast(each, tf.float64) for each in named.values()])).T
    for what, values in zip(named, columns.tolist(), strict=True):
        if len(set(values)) > 1:
            each = ", ".join(f"{value:g} in worker {i}" for i, value in enumerate(values))
            raise ValueError(f"the workers differ in the {what}: {each}. {advice}")


def compare_lengths(iterator: Any, strategy: Any) -> None:
    """Compare what is known of how much each worker will read; else let them ask at each step."""
    shared, data = _private.dataset_of(iterator), iterator.data_adapter
    length = shared.whole.cardinality() if data.num_batches is None else data.num_batches
    compare(strategy, {
        f"number of batches{UNKNOWN}": length,
        "size of the last batch": data.partial_batch_size or 0,
        "steps_per_epoch": iterator.steps_per_epoch or 0,
    })  # fmt: skip
    if length == tf.data.UNKNOWN_CARDINALITY:
        shared.asks(strategy)


def compare_inputs(x: Any, strategy: Any) -> None:
    """Compare the lengths of what is to be predicted, where they are known."""
    known = tf.data.UNKNOWN_CARDINALITY
    if isinstance(x, tf.data.Dataset):
        known = x.cardinality()
    elif hasattr(x, "__len__"):
        known = len(x)
    compare(strategy, {f"length of x{UNKNOWN}": known})


class UntilOneEnds:
    """Batches of which nobody knows how many there are: before each, all workers must have one.

    Where one of them had no more, the others would wait for it in their next step.
    """

    def __init__(self, batches: Iterator[Any], strategy: Any) -> None:
        self.batches, self.strategy, self.seen = batches, strategy, 0

    def __iter__(self) -> UntilOneEnds:
        return self

    def __next__(self) -> Any:
        batch = next(self.batches, None)
        there = of_all(self.strategy, [batch is not None])[:, 0]
        if not there.any():
            raise StopIteration
        if not there.all():
            ends = ["more" if more else str(self.seen) for more in there]
            each = ", ".join(f"{what} in worker {i}" for i, what in enumerate(ends))
            raise ValueError(f"the workers differ in the number of batches: {each}. {SAME}")
        self.seen += 1
        return batch
