"""Say before the first step what `fit` under a strategy would do wrong without a word."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np

from mgpu_helpers._formatting import counted
from mgpu_helpers._later import keras, tf
from mgpu_helpers._models import laid_out, ready
from mgpu_helpers._names import short
from mgpu_helpers._private import layers_of
from mgpu_helpers.devices.machine import one_of_several_workers
from mgpu_helpers.devices.plan import current
from mgpu_helpers.fit._asking import Refused
from mgpu_helpers.fit._proof import differences
from mgpu_helpers.fit.data import batches
from mgpu_helpers.fit.shares import part_of, size_of
from mgpu_helpers.fit.trainer import check_model, is_across, is_of_fit

# Of a Dataset, which may have no end, at most so many batches and bytes are read.
MOST_BATCHES, MOST_BYTES = 10_000, 2**30


def check(model: Any, data: Any, *, rate_for: int | None = None, proof: bool = True) -> list[str]:
    """Give a sentence for each trap that `model.fit(data)` would run into; none is an empty list.

    It looks at the model, its strategy and the data. Then it trains one step of the model on all
    devices and the same step on one, without TF32 and with the same draws, and compares what both
    show, their gradients, and what they leave in each variable: for each that is another number
    there is a sentence with the factor. After that the model, its optimizer and its seeds are what
    they were, to the bit. That costs as much as compiling the step twice more, and a copy of all
    variables on the host; proof=False leaves it out. Where one device has too little memory, a
    small batch is compared with the host.

    data is a `tf.data.Dataset`, or one batch (x, y) as a tuple. A Dataset is read once, up to the
    first GiB; one that shuffles anew in each pass is one pass further after it. rate_for is the
    global batch that the learning rate was found with; without it nothing is said of the rate.

    >>> import keras
    >>> with strategy(plan).scope():
    ...     model = keras.Sequential([keras.Input([3]), keras.layers.Dense(2)])
    ...     model.compile("sgd", "mse")
    >>> check(model, (np.ones([8, 3], "f"), np.ones([8, 2], "f")))
    []
    """
    ready(model, built=False, compiled=True, single=False)
    strategy = model.distribute_strategy
    try:
        sizes, first, strange = _read(data)
    except ValueError as error:  # its elements are no batches
        return [str(error)]
    n, loud = strategy.num_replicas_in_sync, [*_of_scope(model)]
    if n > 1:
        loud += _of_devices(strategy)
    sentences = [*loud, *_of_rate(model, sizes, rate_for), *strange]
    if n > 1:
        if laid_out(model) is None:  # else each worker updates its own
            sentences += _of_optimizer(model)
        if not (ours := is_of_fit(model)):  # which cuts, normalizes and adds up rightly
            sentences += [_uneven(i, size, n) for i, size in enumerate(sizes) if size % n][:1]
            sentences += [*_of_layers(model), *_of_losses(model, strategy)]
        elif sizes and (least := min(sizes)) < n:
            sentences.append(_too_small(sizes.index(least), least, n))
            loud += sentences[-1:] if sizes[0] < n else []
        sentences += _of_workers(data, ours)
    several = n > 1 or laid_out(model) is not None
    if proof and several and first is not None and not loud and not strange:
        sentences += _of_step(model, first, n)
    return sentences


def _of_step(model: Any, batch: Any, replicas: int) -> list[str]:
    if replicas > 1 and is_across(model):
        return [
            f"a step of {model.name!r} was not compared with one device's: workers share it. Run "
            "the script in one process, where fit.check compares the same layout."
        ]
    rows = int(size_of(batch))
    if not is_of_fit(model):
        rows -= rows % replicas  # which fit of a plain strategy refuses to begin with
    try:
        return differences(model, part_of(batch, 0, rows)) if rows else []
    except Refused as error:  # which fit would say at its first step
        return [str(error)]


def _of_scope(model: Any) -> Iterator[str]:
    try:
        check_model(model, model.distribute_strategy)
    except ValueError as error:
        yield str(error)
        return
    with tf.Graph().as_default():
        none = tf.distribute.get_strategy()
    plan = current()
    alone = model.distribute_strategy is none and laid_out(model) is None
    if plan is not None and len(plan) > 1 and alone:
        yield (
            f"{model.name!r} was made in no scope of a strategy, so fit trains it on one of "
            f"{len(plan)} devices: make and compile it in `with fit.strategy(plan).scope()`."
        )


def _of_devices(strategy: Any) -> Iterator[str]:
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


def _of_workers(data: Any, ours: bool) -> Iterator[str]:
    """Say what several workers would read otherwise than one; ours reads all on each."""
    if not isinstance(data, tf.data.Dataset) or not one_of_several_workers():
        return
    policy = data.options().experimental_distribute.auto_shard_policy
    if not ours and policy == tf.data.experimental.AutoShardPolicy.OFF:
        yield (
            "the auto_shard_policy of the Dataset is OFF, so each worker reads all examples unless "
            "its script takes data.shard(workers, index): set AutoShardPolicy.DATA."
        )
    if _shuffles_without_seed(data):
        yield (
            "the Dataset shuffles without a seed, so each worker has an order of its own, and some "
            "examples come twice in a pass and others never: call keras.utils.set_random_seed(1) "
            "before the Dataset is made, or shuffle(…, seed=1)."
        )


def _too_small(i: int, size: int, replicas: int) -> str:
    return (
        f"batch {i + 1} has {counted(size, 'example')} for {replicas} replicas, so that "
        f"{replicas - size} have nothing to do in its step: take larger batches, or "
        "drop_remainder=True."
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


def _read(data: Any) -> tuple[list[int], Any, list[str]]:
    """Give the sizes of the batches, the first one, and a sentence where numbers are none."""
    sizes: list[int] = []
    strange: list[str] = []
    first, left = None, MOST_BYTES
    every = batches(data) if isinstance(data, tf.data.Dataset) else [data]
    for batch in itertools.islice(every, MOST_BATCHES):
        if not isinstance(batch, tuple | dict) and not hasattr(batch, "shape"):
            break
        first = batch if first is None else first
        sizes.append(int(size_of(batch)))
        if not strange:
            strange += _of_numbers(len(sizes), batch)
        leaves = tf.nest.flatten(batch, expand_composites=True)
        left -= sum(np.asarray(x).nbytes for x in leaves if hasattr(x, "dtype"))
        if left < 0:
            break
    return sizes, first, strange


def _of_numbers(i: int, batch: Any) -> Iterator[str]:
    names = ("x", "y", "sample_weight") if isinstance(batch, tuple) else ("x",)
    for name, part in zip(names, batch if isinstance(batch, tuple) else [batch], strict=False):
        for each in tf.nest.flatten(part, expand_composites=True):
            if (numbers := np.asarray(each)).dtype.kind not in "fV":  # V of bfloat16
                continue
            wrong = ~np.isfinite(numbers.astype(float))
            if wrong.any():
                example = int(np.argwhere(wrong)[0][0]) if wrong.ndim else 0
                yield (
                    f"{name} of batch {i} has {counted(int(wrong.sum()), 'number')} that "
                    f"{'is' if wrong.sum() == 1 else 'are'} NaN or infinite, the first in example "
                    f"{example}, and after that step every weight is NaN: clean the data."
                )
                return


def _shuffles_without_seed(data: Any) -> bool:
    """Look into the graph of a Dataset: a shuffle whose two seeds are 0 takes random ones."""
    variant = tf.data.experimental.to_variant(data)
    graph = tf.compat.v1.GraphDef.FromString(
        tf.raw_ops.DatasetToGraphV2(input_dataset=variant).numpy()
    )
    constants = {node.name: tf.make_ndarray(node.attr["value"].tensor) for node in graph.node
                 if node.op == "Const" and node.attr["dtype"].type == tf.int64.as_datatype_enum}
    shuffles = [node for node in graph.node if node.op.startswith("ShuffleDataset")]
    return any(not any(constants.get(name, 0) for name in node.input[2:4]) for node in shuffles)


def _of_rate(model: Any, sizes: list[int], rate_for: int | None) -> Iterator[str]:
    if rate_for is None or not sizes or (batch := sizes[0]) == rate_for:
        return
    rate = float(tf.convert_to_tensor(model.optimizer.learning_rate))
    times = batch / rate_for
    yield (
        f"the learning rate of {rate:.3g} was found with a batch of {rate_for}, and {batch} are in "
        f"a batch now: try {rate * times:.3g} for SGD, {rate * times**0.5:.3g} for Adam, with a "
        "warm-up over the first passes."
    )


def _of_layers(model: Any) -> Iterator[str]:
    norms = keras.layers.BatchNormalization
    local = [layer.name for layer in layers_of(model)
             if isinstance(layer, norms) and not layer.synchronized]  # fmt: skip
    if local:
        more = f" and {len(local) - 1} more" if len(local) > 1 else ""
        yield (
            f"BatchNormalization {local[0]!r}{more} sees the share of one replica only, and no "
            "replica's moving averages are those of the whole batch: set synchronized=True."
        )


def _of_optimizer(model: Any) -> Iterator[str]:
    if not isinstance(model.optimizer.iterations.value, tf.distribute.DistributedValues):
        yield (
            f"the optimizer {model.optimizer.name!r} was made outside of strategy.scope(): fit "
            "fails or counts its steps once for each replica; compile inside the scope."
        )


def _of_losses(model: Any, strategy: Any) -> Iterator[str]:
    for loss in keras.tree.flatten(model.loss):
        if getattr(loss, "reduction", None) == "sum":
            yield (
                f"the loss {loss.name!r} is a sum, which fit divides by the number of replicas: "
                f"gradients are 1/{strategy.num_replicas_in_sync} of those of one device; use "
                "sum_over_batch_size."
            )
