"""The checks of lesson 08's exercises."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from mgpu_helpers.devices.plan import planned
from mgpu_helpers.lessons.checks.judge import NotYet, call, exercise, numbers
from mgpu_helpers.towers.batches import replica_sizes


@exercise
def replica_loss(function: Callable[..., Any]) -> str:
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
    if gradient is None:
        raise NotYet("no gradient goes through it: compute it with TensorFlow")
    if not np.allclose(gradient, 1 / 12):
        raise NotYet("the number is right and its gradient is not: every loss should count 1/12")
    _check_replicas(function)
    return "2, 3 and 5 replicas add up to the mean of their batch, and so do empty ones"


def _check_losses(function: Callable[..., Any], sizes: list[int], rng: Any) -> None:
    import tensorflow as tf

    total = sum(sizes)
    losses = rng.integers(-20, 40, total).astype("float32")
    with tf.device(planned().host):
        shares = [tf.constant(share) for share in np.split(losses, np.cumsum(sizes)[:-1])]
        found = [call(function, share, total) for share in shares]
    got = [float(numbers(each, (), "return one number")) for each in found]
    wanted, n = float(losses.mean()), len(sizes)
    if np.isclose(sum(got), wanted, rtol=1e-4):
        return
    told = ", ".join(map(str, sizes))
    said = f"replicas with {told} examples add up to {sum(got):.4g}, not to {wanted:.4g}"
    means = [float(share.numpy().mean()) if len(share) else np.nan for share in shares]
    if np.allclose(got, means, rtol=1e-4, equal_nan=True):
        said = f"these are the means of the shards: {said}"
    elif np.allclose(got, np.divide(means, n), rtol=1e-4, equal_nan=True):
        said = f"all replicas count alike, whatever they hold: {said}"
    elif np.allclose(got, [float(share.numpy().sum()) for share in shares], rtol=1e-4):
        said = f"nothing is divided: {said}"
    elif np.isnan(sum(got)):
        said = f"a replica without examples should give 0: {said}"
    raise NotYet(said)


def _check_replicas(function: Callable[..., Any]) -> None:
    """Call it as a step does: whoever adds up over the replicas there counts every loss n times."""
    import tensorflow as tf

    plan = planned()
    strategy = tf.distribute.MirroredStrategy(plan.devices, tf.distribute.ReductionToOneDevice())
    losses = np.arange(3.0 * len(plan), dtype="float32")
    shards = strategy.experimental_distribute_values_from_function(
        lambda context: tf.constant(losses[context.replica_id_in_sync_group :: len(plan)])
    )
    parts = call(strategy.run, function, args=(shards, len(losses)))
    got = float(strategy.reduce("SUM", parts, axis=None))
    if not np.isclose(got, losses.mean(), rtol=1e-4):
        raise NotYet(
            f"run by {len(plan)} replicas of a strategy it adds up to {got:.4g}, not to "
            f"{losses.mean():.4g}: return one replica's part, and leave the sum to the strategy"
        )


@exercise
def evaluate(function: Callable[..., Any]) -> str:
    """Check exercise 2 of lesson 08: the mean loss of any number of examples."""
    import tensorflow as tf

    plan, rng = planned(), np.random.default_rng(8)
    strategy = tf.distribute.MirroredStrategy(plan.devices, tf.distribute.ReductionToOneDevice())
    n, center = len(plan), 2.0
    for examples, batch in ((4 * n + 1, 2 * n), (3 * n - 1, 2 * n), (1, 2 * n), (5 * n, 5 * n)):
        values = rng.integers(1, 90, examples).astype("float32")
        ran: list[tuple[int, ...]] = []

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
        if {int(replica) for replica, _ in ran} != set(range(n)):
            raise NotYet("call losses_of by strategy.run, so that it runs on all replicas")
        most = max(int(size) for _, size in ran)
        if most > -(-examples // n):
            raise NotYet(
                f"a replica computed {most} of {examples} losses, and there are {n} replicas: give "
                "each its shard, by strategy.experimental_distribute_dataset"
            )
        losses = (values - center) ** 2
        if not np.isclose(found, losses.mean(), rtol=1e-4):
            raise NotYet(_evaluated(found, float(losses.mean()), losses, batch))
        center = float(rng.integers(3, 90))
    return "the mean of all examples, whatever the last batch holds"


def _evaluated(found: float, wanted: float, losses: np.ndarray, batch: int) -> str:
    batches = [losses[i : i + batch] for i in range(0, len(losses), batch)]
    said = f"{len(losses)} examples in batches of {batch} have {wanted:.5g}, not {found:.5g}"
    if np.isnan(found):
        return f"the mean of an empty shard is not a number: {said}"
    if np.isclose(found, wanted * len(losses), rtol=1e-4):
        return f"divide by the number of examples: {said}"
    full = [each for each in batches if len(each) == batch]
    if len(full) < len(batches) and full and np.isclose(found, np.mean(full), rtol=1e-4):
        return f"the last batch is left out: {said}"
    if np.isclose(found, np.mean([each.mean() for each in batches]), rtol=1e-4):
        return f"a small last batch counts as much as the others: {said}"
    return said


@exercise
def leaves_empty(function: Callable[..., Any]) -> str:
    """Check exercise 3 of lesson 08: whether a dataset leaves a replica without examples."""
    for examples, batch, replicas in _datasets():
        got = call(function, examples, batch, replicas)
        if not isinstance(got, (bool, np.bool_)):
            raise NotYet(f"return True or False, not a value of type {type(got).__name__}")
        sizes = [batch] * (examples // batch) + [examples % batch] * (examples % batch > 0)
        shares = [replica_sizes(each, replicas) for each in (sizes[0], sizes[-1])]
        wanted = any(0 in share for share in shares)
        if bool(got) != wanted:
            which = "last" if (0 in shares[-1]) == wanted and shares[-1] != shares[0] else "first"
            share = shares[-1] if which == "last" else shares[0]
            raise NotYet(
                f"{examples} examples in batches of {batch} over {replicas} replicas: the {which} "
                f"batch gives them {', '.join(map(str, share))}, so it should be {wanted}"
            )
    return "right for 400 datasets, with 1 to 8 replicas"


def _datasets() -> list[tuple[int, int, int]]:
    rng = np.random.default_rng(8)
    known = [(5, 4, 2), (8, 4, 2), (7, 4, 2), (13, 8, 4), (12, 6, 4), (3, 8, 4), (9, 4, 1)]
    drawn = [
        (int(rng.integers(1, 300)), int(rng.integers(1, 40)), int(rng.integers(1, 9)))
        for _ in range(400 - len(known))
    ]
    return known + drawn
