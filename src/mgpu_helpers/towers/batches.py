"""Say before a training what its batches do to the replicas of MirroredStrategy: `mgpu batches`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from mgpu_helpers._formatting import counted, whole_number


def replica_sizes(batch: int, replicas: int) -> list[int]:
    """Give the number of examples of a global batch that MirroredStrategy hands to each replica.

    Each takes the share that would be even, rounded up, until nothing is left. (`split` of the
    towers gives shards that differ by one example at most.)

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
    sizes: Iterator[tuple[int, str]]
    tensorflow = sys.modules.get("tensorflow")
    if tensorflow is not None and isinstance(examples, tensorflow.data.Dataset):
        if batch is not None:
            raise ValueError(
                f"batch={batch}, and the Dataset has its batches: give it and replicas= alone."
            )
        sizes = ((n, f"batch {i} of the Dataset has {n}") for i, n in enumerate(_read(examples), 1))
    else:
        examples = whole_number("examples", examples, "a number of examples", 1)
        batch = whole_number("batch", batch, "the size of a global batch", 1)
        last = examples % batch
        sizes = iter([(batch, ""), (last, f"the last batch has {last} of {examples:,}")])
    for i, (size, said) in enumerate(sizes):
        if size % replicas:
            raise ValueError(_wrong(size, said, replicas, first=i == 0))


def _wrong(size: int, said: str, replicas: int, first: bool) -> str:
    """Say what a batch that does not divide does: `fit` refuses it only if it is the first."""
    over, parts = counted(replicas, "replica"), replica_sizes(size, replicas)
    listed, low = ", ".join(map(str, parts)), size - size % replicas
    if first:
        use = f"use {low} or {low + replicas}" if low else f"use {replicas}"
        return f"a batch of {size} does not divide over {over}, which would get {listed}: {use}."
    if 0 in parts:
        harm = "one without examples counts as 0, and turns a BatchNormalization into NaN"
    else:
        harm = "their means count alike, so an example of a smaller share counts more"
    return (
        f"{said} examples, of which {over} get {listed}: {harm}; leave it out with "
        f"drop_remainder=True, or pad it to {low + replicas} or more with examples of weight 0."
    )


def _read(data: Any) -> Iterator[int]:
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


DESCRIPTION = """\
Say whether so many examples, in global batches, give every replica of MirroredStrategy as many as
the others. The exit status is 0 when they do, 1 when not, 2 when a number cannot be read.
"""


def main(arguments: Sequence[str], called: str) -> int:
    """Print what the batches give each replica, and return the exit status."""
    parser = argparse.ArgumentParser(called, description=DESCRIPTION)
    for name, what in {
        "examples": "in the data set", "batch": "examples of all replicas in a step",
        "replicas": "devices that train together",
    }.items():  # fmt: skip
        parser.add_argument(name, type=int, help=what)
    numbers = parser.parse_args(arguments)
    for name, number in vars(numbers).items():
        if number < 1:
            parser.error(f"argument {name}: {number} is not above 0")
    try:
        check_batches(numbers.examples, numbers.batch, numbers.replicas)
    except ValueError as error:
        print(error)
        return 1
    print(f"every batch gives each of {counted(numbers.replicas, 'replica')} as many as the others")
    return 0
