"""Say before the first step what `fit` under a strategy would do wrong without a word."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from mgpu_helpers._models import ready
from mgpu_helpers._private import layers_of
from mgpu_helpers.devices.machine import one_of_several_workers
from mgpu_helpers.towers.batches import check_batches


def check(model: Any, data: Any, *, rate_for: int | None = None) -> list[str]:
    """Give a sentence for each trap that `model.fit(data)` would run into; none is an empty list.

    It looks at the model, its strategy and the Dataset, and trains nothing. rate_for is the global
    batch that the learning rate was found with; without it nothing is said of the rate.

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

    names = [tf.DeviceSpec.from_string(name) for name in strategy.extended.worker_devices]
    used = [f"/{spec.device_type}:{spec.device_index}" for spec in names]
    there = {
        f"/{device.device_type}:{device.name.rpartition(':')[2]}"
        for device in tf.config.list_logical_devices()
    }
    for name, times in Counter(used).items():
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

    if not isinstance(data, tf.data.Dataset):
        return
    try:
        check_batches(data, replicas=strategy.num_replicas_in_sync)
    except ValueError as error:
        yield str(error)
    policies = tf.data.experimental.AutoShardPolicy
    policy = data.options().experimental_distribute.auto_shard_policy
    if one_of_several_workers() and policy == policies.OFF:
        yield (
            "the auto_shard_policy of the Dataset is OFF, so each worker reads all examples unless "
            "its script takes data.shard(workers, index): set AutoShardPolicy.DATA."
        )


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

    if rate_for is None or not (batch := _batch(data)) or batch == rate_for:
        return
    rate = float(tf.convert_to_tensor(model.optimizer.learning_rate))
    times = batch / rate_for
    yield (
        f"the learning rate of {rate:.3g} was found with a batch of {rate_for}, and {batch} are in "
        f"a batch now: try {rate * times:.3g} for SGD, {rate * times**0.5:.3g} for Adam, with a "
        "warm-up over the first passes."
    )


def _batch(data: Any) -> int | None:
    """Give the number of examples in the first batch, None if nothing says so."""
    import tensorflow as tf

    first = data if isinstance(data, tuple) else next(iter(data), ())
    sizes = [len(each) for each in tf.nest.flatten(first) if getattr(each, "shape", None)]
    return sizes[0] if sizes else None


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
