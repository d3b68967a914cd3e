"""Say before the first step what `fit` under a strategy would do wrong without a word."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from mgpu_helpers._formatting import counted
from mgpu_helpers._models import ready
from mgpu_helpers._names import short
from mgpu_helpers._private import layers_of
from mgpu_helpers.devices.machine import one_of_several_workers
from mgpu_helpers.fit.batches import batches
from mgpu_helpers.fit.shares import size_of

ENOUGH = 10_000  # batches of a Dataset that are read, which may have no end


def check(model: Any, data: Any, *, rate_for: int | None = None) -> list[str]:
    """Give a sentence for each trap that `model.fit(data)` would run into; none is an empty list.

    data is a `tf.data.Dataset`, or one batch (x, y) as a tuple. It looks at the model, its strategy
    and the data, and trains nothing; a Dataset is read once, unless drop_remainder=True gives all
    batches one size. rate_for is the global batch that the learning rate was found with; without it
    nothing is said of the rate.

    >>> import keras
    >>> model = keras.Sequential([keras.Input([3]), keras.layers.Dense(2)])
    >>> model.compile("sgd", "mse")
    >>> check(model, (np.ones([8, 3], "f"), np.ones([8, 2], "f")))
    []
    """
    ready(model, built=False, compiled=True, single=False)
    strategy = model.distribute_strategy
    sentences = list(_of_rate(model, data, rate_for))
    if strategy.num_replicas_in_sync > 1:
        sentences += [*_of_devices(strategy), *_of_optimizer(model)]
        if not getattr(strategy, "of_fit", False):  # which cuts, normalizes and adds up rightly
            sentences += [*_of_data(data, strategy), *_of_layers(model)]
            sentences += _of_losses(model, strategy)
        sentences += _of_order(data)
    return sentences


def _of_devices(strategy: Any) -> Iterator[str]:
    import tensorflow as tf

    there = {short(device.name) for device in tf.config.list_logical_devices()}
    for name, times in Counter(map(short, strategy.extended.worker_devices)).items():
        if name not in there:
            yield (
                f"the strategy uses {name}, which is not there: TensorFlow trains on another "
                f"device or waits without an end; there are {', '.join(sorted(there))}."
            )
        elif times > 1:
            yield (
                f"the strategy has {name} {times} times, so {times} replicas take turns on it: "
                "name each device once."
            )


def _of_data(data: Any, strategy: Any) -> Iterator[str]:
    import tensorflow as tf

    n = strategy.num_replicas_in_sync
    try:
        for i, size in enumerate(_sizes(data)):
            if size % n:
                yield _uneven(i, size, n)
                break
    except ValueError as error:  # its elements are no batches
        yield str(error)
    if not isinstance(data, tf.data.Dataset):
        return
    policies = tf.data.experimental.AutoShardPolicy
    policy = data.options().experimental_distribute.auto_shard_policy
    if one_of_several_workers() and policy == policies.OFF:
        yield (
            "the auto_shard_policy of the Dataset is OFF, so each worker reads all examples unless "
            "its script takes data.shard(workers, index): set AutoShardPolicy.DATA."
        )


def replica_sizes(batch: int, replicas: int) -> list[int]:
    """Give the number of examples of a global batch that MirroredStrategy hands to each replica.

    Each takes the share that would be even, rounded up, until nothing is left.

    >>> replica_sizes(5, 4)
    [2, 2, 1, 0]
    """
    share = -(-batch // replicas)
    return [max(0, min(share, batch - share * i)) for i in range(replicas)]


def _uneven(i: int, size: int, replicas: int) -> str:
    """Say what a batch that does not divide does: `fit` refuses it only if it is the first."""
    parts, low = replica_sizes(size, replicas), size - size % replicas
    said = (
        f"batch {i + 1} has {counted(size, 'example')}, of which {replicas} replicas get "
        f"{', '.join(map(str, parts[:-1]))} and {parts[-1]}"
    )
    if i == 0:
        use = f"{low} or {low + replicas}" if low else f"{replicas}"
        return f"{said}, and fit refuses a first batch that does not divide: use {use}."
    harm = "their means count alike, so an example of a smaller share counts more"
    if 0 in parts:
        harm = "a replica without examples counts as 0, and turns a BatchNormalization into NaN"
    return (
        f"{said}: {harm}; leave it out with drop_remainder=True, or pad it to {low + replicas} or "
        "more with examples of weight 0."
    )


def _sizes(data: Any) -> Iterator[int]:
    """Give the sizes of the batches: one for all where it is known."""
    import tensorflow as tf

    if isinstance(data, tf.data.Dataset):
        data = batches(data)
        shape = tf.nest.flatten(data.element_spec)[0].shape
        if shape.rank and shape[0] is not None:
            yield shape[0]
        else:
            yield from (int(size_of(batch)) for batch in data.take(ENOUGH))
    elif isinstance(data, tuple):
        yield int(size_of(data))


def _of_order(data: Any) -> Iterator[str]:
    import tensorflow as tf

    if not isinstance(data, tf.data.Dataset) or not one_of_several_workers():
        return
    if _shuffles_without_seed(data):
        yield (
            "the Dataset shuffles without a seed, so each worker has an order of its own, and some "
            "examples come twice in a pass and others never: call keras.utils.set_random_seed(1) "
            "before the Dataset is made, or shuffle(…, seed=1)."
        )


def _shuffles_without_seed(data: Any) -> bool:
    """Look into the graph of a Dataset: a shuffle whose two seeds are 0 takes random ones."""
    import tensorflow as tf

    variant = tf.data.experimental.to_variant(data)
    graph = tf.compat.v1.GraphDef.FromString(
        tf.raw_ops.DatasetToGraphV2(input_dataset=variant).numpy()
    )
    constants = {
        node.name: tf.make_ndarray(node.attr["value"].tensor)
        for node in graph.node
        if node.op == "Const" and node.attr["dtype"].type == tf.int64.as_datatype_enum
    }
    shuffles = [node for node in graph.node if node.op.startswith("ShuffleDataset")]
    return any(not any(constants.get(name, 0) for name in node.input[2:4]) for node in shuffles)


def _of_rate(model: Any, data: Any, rate_for: int | None) -> Iterator[str]:
    import tensorflow as tf

    if rate_for is None or not (batch := next(_sizes(data), rate_for)) or batch == rate_for:
        return
    rate = float(tf.convert_to_tensor(model.optimizer.learning_rate))
    times = batch / rate_for
    yield (
        f"the learning rate of {rate:.3g} was found with a batch of {rate_for}, and {batch} are in "
        f"a batch now: try {rate * times:.3g} for SGD, {rate * times**0.5:.3g} for Adam, with a "
        "warm-up over the first passes."
    )


def _of_layers(model: Any) -> Iterator[str]:
    import keras

    local = [
        layer.name
        for layer in layers_of(model)
        if isinstance(layer, keras.layers.BatchNormalization) and not layer.synchronized
    ]
    if local:
        more = f" and {len(local) - 1} more" if len(local) > 1 else ""
        yield (
            f"BatchNormalization {local[0]!r}{more} sees the share of one replica only, and no "
            "replica's moving averages are those of the whole batch: set synchronized=True."
        )


def _of_optimizer(model: Any) -> Iterator[str]:
    import tensorflow as tf

    if not isinstance(model.optimizer.iterations.value, tf.distribute.DistributedValues):
        yield (
            f"the optimizer {model.optimizer.name!r} was made outside of strategy.scope(): fit "
            "fails or counts its steps once for each replica; compile inside the scope."
        )


def _of_losses(model: Any, strategy: Any) -> Iterator[str]:
    import keras

    for loss in keras.tree.flatten(model.loss):
        if getattr(loss, "reduction", None) == "sum":
            yield (
                f"the loss {loss.name!r} is a sum, which fit divides by the number of replicas: "
                f"gradients are 1/{strategy.num_replicas_in_sync} of those of one device; use "
                "sum_over_batch_size."
            )
