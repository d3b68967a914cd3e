"""Say before a training what its batches do to the replicas of MirroredStrategy."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from mgpu_helpers.wording import counted, whole_number


def replica_sizes(batch: int, replicas: int) -> list[int]:
    """Give the number of examples of a global batch that MirroredStrategy hands to each replica.

    Each takes the share that would be even, rounded up, until nothing is left. (`shares` and
    `split` of the towers differ by one example at most.)

    >>> replica_sizes(5, 4)
    [2, 2, 1, 0]
    """
    share = -(-batch // replicas)
    return [max(0, min(share, batch - share * i)) for i in range(replicas)]


# Of a Dataset that may have no end, as many batches are read.
ENOUGH = 10_000


def check_batches(examples: Any, batch: int | None = None, replicas: int | None = None) -> None:
    """Raise ValueError unless every batch divides: what lesson 08 asks before it trains.

    `examples` in global batches of `batch` leave a last one, which may be smaller. `model.fit`
    under MirroredStrategy refuses a first batch that does not divide, and goes on silently with a
    last one.

    Or give a `tf.data.Dataset` of batches: check_batches(data, replicas=4). It is read once, unless
    drop_remainder=True gives all batches one size.

    >>> check_batches(1000, 8, 4)
    >>> check_batches(1005, 8, 4)
    Traceback (most recent call last):
        ...
    ValueError: the last batch has 5 of 1,005 examples, of which 4 replicas get 2, 2, 1, 0: ...
    """
    replicas = whole_number("replicas", replicas, "a number of replicas", 1)
    if not _is_dataset(examples):
        examples = whole_number("examples", examples, "a number of examples", 1)
        size = whole_number("batch", batch, "the size of a global batch", 1)
        _check_first(size, replicas)
        last = examples % size
        _check_later(last, f"the last batch has {last} of {examples:,} examples", replicas)
        return
    if batch is not None:
        raise ValueError(
            f"batch={batch}, and the Dataset has its batches: give it and replicas= alone."
        )
    for i, size in enumerate(_sizes(examples)):
        if i == 0:
            _check_first(size, replicas)
        _check_later(size, f"batch {i + 1} of the Dataset has {size} examples", replicas)


def _check_first(batch: int, replicas: int) -> None:
    if batch % replicas:
        low = batch - batch % replicas
        use = f"{low} or {low + replicas}" if low else f"{replicas}"
        raise ValueError(
            f"a batch of {batch} does not divide over {counted(replicas, 'replica')}, which would "
            f"get {_listed(batch, replicas)}: use {use}."
        )


def _check_later(size: int, said: str, replicas: int) -> None:
    if size % replicas:
        if 0 in replica_sizes(size, replicas):
            harm = "one without examples counts as 0, and turns a BatchNormalization into NaN"
        else:
            harm = "their means count alike, so an example of a smaller share counts more"
        raise ValueError(
            f"{said}, of which {counted(replicas, 'replica')} get {_listed(size, replicas)}: "
            f"{harm}; leave it out with drop_remainder=True, or pad it to "
            f"{size + -size % replicas} or more with examples of weight 0."
        )


def _is_dataset(given: Any) -> bool:
    tensorflow = sys.modules.get("tensorflow")
    return tensorflow is not None and isinstance(given, tensorflow.data.Dataset)


def _sizes(data: Any) -> Iterator[int]:
    """Give the sizes of the batches of a Dataset: one for all where it is known."""
    import tensorflow as tf

    shapes = [tf.TensorShape(each.shape) for each in tf.nest.flatten(data.element_spec)]
    known: set[Any] = {None if s.rank is None else [*s, 0][0] for s in shapes}
    if any(shape.rank == 0 for shape in shapes) or len(known - {None}) > 1:
        raise ValueError(
            f"the Dataset gives elements of shapes {' and '.join(map(str, shapes))}, which are no "
            "batches: check what .batch(…) gives."
        )
    if None not in known:
        yield from known
        return
    may_be_endless = data.cardinality().numpy() < 0
    for i, element in enumerate(data):
        if may_be_endless and i == ENOUGH:
            raise ValueError(
                f"the Dataset has more than {ENOUGH:,} batches and does not say how many, nor that "
                "all have one size: batch it with drop_remainder=True."
            )
        yield int(tf.nest.flatten(element)[0].shape[0])
def _listed(batch: int, replicas: int) -> str:
    return ", ".join(map(str, replica_sizes(batch, replicas)))
