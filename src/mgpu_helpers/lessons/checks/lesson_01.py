"""The checks of lesson 01's exercises."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from mgpu_helpers.devices.plan import planned
from mgpu_helpers.fit.checks import replica_sizes
from mgpu_helpers.lessons.checks.judge import call, exercise, expect, numbers, same_as


def _strategy() -> Any:
    import tensorflow as tf

    one = tf.distribute.ReductionToOneDevice()
    return tf.distribute.MirroredStrategy(planned().devices, one)


@exercise
def evaluate(function: Any) -> str:
    """Check exercise 1 of lesson 01: the mean loss of any number of examples."""
    import tensorflow as tf

    rng, strategy, n, center = np.random.default_rng(8), _strategy(), len(planned()), 2.0
    sizes = (4 * n + 1, 2 * n), (3 * n - 1, 2 * n), (1, 2 * n), (5 * n, 5 * n), (4 * n - 1, 2 * n)
    for examples, batch in sizes:
        values = rng.integers(1, 90, examples).astype("float32")
        ran: list[tuple[int, int]] = []

        def losses_of(share: Any, ran: Any = ran, center: float = center) -> Any:
            context = tf.distribute.get_replica_context()
            here = context is not None and context.strategy is strategy
            replica = context.replica_id_in_sync_group if here else -1
            # In a graph both numbers are known when it runs, not when it is made.
            tf.numpy_function(lambda *its: ran.append(its), [replica, tf.size(share)], [])
            return (share - center) ** 2

        data = tf.data.Dataset.from_tensor_slices(values).batch(batch)
        got = call(function, strategy, losses_of, data)
        found = float(numbers(got, (), "return one number"))
        on_all = {int(replica) for replica, _ in ran} == set(range(n))
        expect(on_all, "call losses_of by strategy.run, so that it runs on all replicas")
        most = max(int(size) for _, size in ran)
        expect(most <= -(-examples // n),
               f"a replica computed {most} of {examples} losses, and there are {n} replicas: give "
               "each its shard, by strategy.experimental_distribute_dataset")
        losses = (values - center) ** 2
        right = np.isclose(found, losses.mean(), rtol=1e-4)
        expect(right, _evaluated(found, float(losses.mean()), losses, batch, n))
        center = float(rng.integers(3, 90))
    return "the mean of all examples, whatever the last batch holds"


def _evaluated(found: float, wanted: float, losses: np.ndarray, batch: int, n: int) -> str:
    batches = [losses[i : i + batch] for i in range(0, len(losses), batch)]
    full = [each for each in batches if len(each) == batch]
    said = f"{len(losses)} examples in batches of {batch} have {wanted:.5g}, not {found:.5g}"
    if np.isnan(found):
        return f"the mean of an empty shard is not a number: {said}"
    if np.isclose(found, wanted * len(losses), rtol=1e-4):
        return f"divide by the number of examples: {said}"
    if np.isclose(found, wanted * n, rtol=1e-4):
        return f"give each replica its shard of a batch, not all of the batch: {said}"
    if np.isclose(found, losses.sum() / (batch * len(batches)), rtol=1e-4):
        return f"the last batch has fewer examples than the others: {said}"
    if len(full) < len(batches) and full and np.isclose(found, np.mean(full), rtol=1e-4):
        return f"the last batch is left out: {said}"
    if np.isclose(found, np.mean([each.mean() for each in batches]), rtol=1e-4):
        return f"a small last batch counts as much as the others: {said}"
    means = [np.mean([shard.mean() for shard in _shards(each, n)]) for each in batches]
    if np.isclose(found, np.average(means, weights=[len(each) for each in batches]), rtol=1e-4):
        return f"a replica with fewer examples counts as much as the others: {said}"
    return said


def _shards(batch: np.ndarray, replicas: int) -> list[np.ndarray]:
    """Cut a batch as a plain strategy does, and leave out the empty shards."""
    ends = np.cumsum(replica_sizes(len(batch), replicas))
    return [shard for shard in np.split(batch, ends[:-1]) if len(shard)]


def _shares(examples: int, batch: int, replicas: int) -> list[tuple[int, ...]]:
    """Share out the first batch of a dataset and the last."""
    last = examples % batch or batch
    first = batch if examples >= batch else last
    return [tuple(replica_sizes(size, replicas)) for size in (first, last)]


def _leaves(examples: int, batch: int, replicas: int) -> bool:
    return any(0 in share for share in _shares(examples, batch, replicas))


def _datasets() -> Iterator[tuple[int, int, int]]:
    rng = np.random.default_rng(8)
    known = [(5, 4, 2), (8, 4, 2), (7, 4, 2), (13, 8, 4), (12, 6, 4), (3, 8, 4), (9, 4, 1)]
    yield from known
    for _ in range(400 - len(known)):
        yield int(rng.integers(1, 300)), int(rng.integers(1, 40)), int(rng.integers(1, 9))


def _left(right: bool, got: bool, examples: int, batch: int, replicas: int) -> str:
    first, last = _shares(examples, batch, replicas)
    which, share = ("last", last) if (0 in last) == right and last != first else ("first", first)
    return (
        f"{examples} examples in batches of {batch} over {replicas} replicas: the {which} batch "
        f"gives them {', '.join(map(str, share))}, so it should be {right}"
    )


#: Check exercise 2 of lesson 01: whether a dataset leaves a replica without examples.
leaves_empty = same_as(
    _leaves, _datasets, told=_left, yes="right for 400 datasets, with 1 to 8 replicas"
)
