"""The towers of a Keras model, and how they run layer by layer, to meet at a BatchNormalization.

Keras can do so only within `tf.distribute`, for a model that was built in its scope.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from mgpu_helpers import _private
from mgpu_helpers._models import graph_of, ready, takes_training
from mgpu_helpers._train import HOST, read

APART = 10**9  # between the seeds of two towers; Keras draws none that is larger


@dataclass(frozen=True, eq=False)
class Tower:
    """A device with what it has read of a model's variables, within one step."""

    device: str
    name: str  # a name scope, with a slash at its end: it can be opened again
    weights: list[Any]  # the values of what is trained
    state: list[Any]  # the values of what is not: moving averages, the seeds of dropout
    scope: Any  # a keras.StatelessScope: layers read these values in it, and leave new ones there

    def block(self) -> contextlib.ExitStack:
        """Place, name and read within the block as this tower does."""
        import tensorflow as tf

        block = contextlib.ExitStack()
        for each in (tf.device(self.device), tf.name_scope(self.name), self.scope):
            block.enter_context(each)
        return block


def begin(device: str, i: int, trained: Sequence[Any], kept: Sequence[Any]) -> Tower:
    """Read the variables of a model for tower i; each read is one copy to its device."""
    import keras
    import tensorflow as tf

    every = [*trained, *kept]
    with tf.device(device), tf.name_scope(f"tower_{i}") as name:
        values = list(read(dict(enumerate(every))).values())
        for k, variable in enumerate(every):
            if variable.name == "seed_generator_state" and i:  # a seed and how often it was used
                values[k] += tf.constant([i * APART, 0], values[k].dtype)
    scope = keras.StatelessScope(zip(every, values, strict=True), collect_losses=True)
    return Tower(device, name, values[: len(trained)], values[len(trained) :], scope)


@dataclass(frozen=True, eq=False)
class _Each:
    """What one tensor of a model is in each tower."""

    values: tuple[Any, ...]


def in_step(
    model: Any, towers: Sequence[Tower], xs: Sequence[Any], shares: Sequence[Any]
) -> list[Any]:
    """Call a functional model for training on each tower's x, and give each tower's outputs.

    Each layer runs in all towers before the next one does. A BatchNormalization normalizes by the
    moments of all of them, which count by the shares of the batch.
    """
    import keras
    import tensorflow as tf

    graph = graph_of(model)
    entry = keras.Model(graph.input, graph.inputs, name=model.name)  # gives a flat list of these

    def on_each(operation: Any) -> Callable[..., Any]:
        def call(*args: Any, **named: Any) -> Any:
            if takes_training(operation):
                named["training"] = True  # as Keras gives it to every layer of a model
            given = [_picked((args, named), i) for i in range(len(towers))]
            if met(operation):
                results = in_step(operation, towers, [args[0] for args, _ in given], shares)
            else:
                moments: Any = contextlib.nullcontext()
                if normalizes(operation):
                    found = _moments(operation, towers, given, shares)
                    moments = _private.with_moments(operation, *found)
                with moments:
                    results = []
                    for tower, (args, named) in zip(towers, given, strict=True):
                        with tower.block():
                            results.append(operation(*args, **named))
            return tf.nest.map_structure(lambda *each: _Each(each), *results)

        return call

    inputs = []
    for tower, x in zip(towers, xs, strict=True):
        with tower.block():
            inputs.append(keras.tree.flatten(entry(x)))
    each_input = map(_Each, zip(*inputs, strict=True))
    values = dict(zip(map(id, graph.inputs), each_input, strict=True))
    for node in _private.calls_of(graph):
        args, named = _private.run_call(node, values)
        made = on_each(node.operation)(*args, **named)
        values |= zip(map(id, node.outputs), keras.tree.flatten(made), strict=True)
    made = [values[id(t)] for t in graph.outputs]
    outputs = keras.tree.pack_sequence_as(graph.output, made) if len(made) > 1 else made[0]
    return [_picked(outputs, i) for i in range(len(towers))]


def met(model: Any) -> list[Any]:
    """List the BatchNormalization layers where `in_step` makes the towers meet."""
    try:
        ready(model, functional=True, single=False)
    except (TypeError, ValueError):  # a layer, or code
        return []
    return [each for layer in model.layers
            for each in ([layer] if normalizes(layer) else met(layer))]  # fmt: skip


def normalizes(layer: Any) -> bool:
    """Say whether a layer normalizes by the statistics of a batch."""
    import keras

    return isinstance(layer, keras.layers.BatchNormalization) and layer.trainable


def _picked(structure: Any, tower: int) -> Any:
    import tensorflow as tf

    return tf.nest.map_structure(
        lambda each: each.values[tower] if isinstance(each, _Each) else each, structure
    )


def _moments(
    layer: Any, towers: Sequence[Tower], given: Sequence[Any], shares: Sequence[Any]
) -> tuple[Any, Any]:
    """Compute mean and variance of all towers' inputs to a layer, on the host."""
    import keras
    import tensorflow as tf

    means, variances, counts = [], [], []
    for tower, ((x,), named), share in zip(towers, given, shares, strict=True):
        with tower.block(), tf.name_scope(layer.name):
            mask = named.get("mask", _private.mask_of(x))
            x = tf.cast(x, keras.backend.result_type(x.dtype, "float32"))
            mean, variance = _private.moments(layer, x, mask)
            means.append(mean)
            variances.append(variance)
            count = share
            if mask is not None:  # of a share of 0, what stands in its place does not count
                count = tf.math.count_nonzero(mask) * tf.cast(share > 0, tf.int64)
            counts.append(tf.cast(count, x.dtype))
    with tf.device(HOST), tf.name_scope(layer.name):
        weights = [count / tf.add_n(counts) for count in counts]
        mean = tf.add_n([w * m for w, m in zip(weights, means, strict=True)])
        apart = [v + tf.square(m - mean) for v, m in zip(variances, means, strict=True)]
        return mean, tf.add_n([w * a for w, a in zip(weights, apart, strict=True)])
