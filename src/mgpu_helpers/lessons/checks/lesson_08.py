"""The checks of lesson 08's exercises."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from mgpu_helpers.devices.plan import planned
from mgpu_helpers.lessons.checks.judge import NotYet, call, exercise, expect, numbers, same_as
from mgpu_helpers.towers.batches import replica_sizes


def _strategy() -> Any:
    import tensorflow as tf

    one = tf.distribute.ReductionToOneDevice()
    return tf.distribute.MirroredStrategy(planned().devices, one)


@exercise
def replica_loss(function: Any) -> str:
    """Check exercise 1 of lesson 08: losses whose sum over the replicas is the batch's mean."""
    import tensorflow as tf

    rng = np.random.default_rng(8)
    for n in (2, 3, 5):
        sizes = [int(size) for size in rng.permutation(np.arange(1, 12))[:n]]
        _check_losses(function, sizes, rng)
    _check_losses(function, [int(rng.integers(2, 9)), 1, 0], rng)
    with tf.GradientTape() as tape:
        losses = tf.constant([1.0, 2.0, 6.0])
        tape.watch(losses)
        found = call(function, losses, 12)
    gradient = tape.gradient(found, losses) if tf.is_tensor(found) else None
    expect(gradient is not None, "no gradient goes through it: compute it with TensorFlow")
    right = np.allclose(gradient, 1 / 12)  # type: ignore[arg-type]  # which is not None here
    expect(right, "the number is right and its gradient is not: every loss should count 1/12")
    _check_replicas(function)
    return "2, 3 and 5 replicas add up to the mean of their batch, and so do empty ones"


def _check_losses(function: Any, sizes: list[int], rng: Any) -> None:
    import tensorflow as tf

    total, n = sum(sizes), len(sizes)
    losses = rng.integers(-20, 40, total).astype("float32")
    shares = np.split(losses, np.cumsum(sizes)[:-1])
    with tf.device(planned().host):
        found = [call(function, tf.constant(share), total) for share in shares]
    got = [float(numbers(each, (), "return one number")) for each in found]
    wanted, told = float(losses.mean()), ", ".join(map(str, sizes))
    if np.isclose(sum(got), wanted, rtol=1e-4):
        return
    means = np.array([share.mean() if len(share) else np.nan for share in shares])
    said = f"replicas with {told} examples add up to {sum(got):.4g}, not to {wanted:.4g}"
    for wrong, hint in (
        (means, "these are the means of the shards"),
        (means / n, "all replicas count alike, whatever they hold"),
        ([share.sum() for share in shares], "nothing is divided"),
    ):
        mistaken = np.allclose(got, wrong, rtol=1e-4, equal_nan=True)
        expect(not mistaken, f"{hint}: {said}")
    expect(not np.isnan(sum(got)), f"a replica without examples should give 0: {said}")
    raise NotYet(said)


def _check_replicas(function: Any) -> None:
    """Call it as a step does: whoever adds up over the replicas there counts every loss n times."""
    import tensorflow as tf

    n, strategy = len(planned()), _strategy()
    losses = np.arange(3.0 * n, dtype="float32")
    shards = strategy.experimental_distribute_values_from_function(
        lambda context: tf.constant(losses[context.replica_id_in_sync_group :: n])
    )
    parts = call(strategy.run, function, args=(shards, len(losses)))
    got, right = float(strategy.reduce("SUM", parts, axis=None)), losses.mean()
    expect(np.isclose(got, right, rtol=1e-4),
           f"run by {n} replicas of a strategy it adds up to {got:.4g}, not to {right:.4g}: return "
           "one replica's part, and leave the sum to the strategy")


@exercise
def evaluate(function: Any) -> str:
    """Check exercise 2 of lesson 08: the mean loss of any number of examples."""
    import tensorflow as tf

    rng, strategy, n, center = np.random.default_rng(8), _strategy(), len(planned()), 2.0
    for examples, batch in ((4 * n + 1, 2 * n), (3 * n - 1, 2 * n), (1, 2 * n), (5 * n, 5 * n)):
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
        expect(right, _evaluated(found, float(losses.mean()), losses, batch))
        center = float(rng.integers(3, 90))
    return "the mean of all examples, whatever the last batch holds"


def _evaluated(found: float, wanted: float, losses: np.ndarray, batch: int) -> str:
    batches = [losses[i : i + batch] for i in range(0, len(losses), batch)]
    full = [each for each in batches if len(each) == batch]
    said = f"{len(losses)} examples in batches of {batch} have {wanted:.5g}, not {found:.5g}"
    if np.isnan(found):
        return f"the mean of an empty shard is not a number: {said}"
    if np.isclose(found, wanted * len(losses), rtol=1e-4):
        return f"divide by the number of examples: {said}"
    if len(full) < len(batches) and full and np.isclose(found, np.mean(full), rtol=1e-4):
        return f"the last batch is left out: {said}"
    if np.isclose(found, np.mean([each.mean() for each in batches]), rtol=1e-4):
        return f"a small last batch counts as much as the others: {said}"
    return said


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


#: Check exercise 3 of lesson 08: whether a dataset leaves a replica without examples.
leaves_empty = same_as(
    _leaves, _datasets, told=_left, yes="right for 400 datasets, with 1 to 8 replicas"
)
