"""Run a Keras model on several devices layer by layer, so that they meet at a BatchNormalization.

Keras can do so only within `tf.distribute`, for a model that was built in its scope.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from mgpu_helpers.towers.split import HOST
from mgpu_helpers.towers.tower import Tower


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
    model._get_call_context()  # as a call of the model: layers forget their losses at its start
    try:
        return _run(model, towers, xs, shares)
    finally:
        model._maybe_reset_call_context()


def met(model: Any) -> list[Any]:
    """List the BatchNormalization layers where `in_step` makes the towers meet."""
    graph, found = _graph(model), []
    for layer in getattr(graph, "layers", ()):
        found += [layer] if _normalizes(layer) else met(layer)
    return found


def batch_norms(model: Any) -> list[Any]:
    """List the layers of a model, at any depth, that normalize by the statistics of a batch."""
    return [layer for layer in model._flatten_layers() if _normalizes(layer)]


def _normalizes(layer: Any) -> bool:
    import keras

    return isinstance(layer, keras.layers.BatchNormalization) and layer.trainable


def _graph(model: Any) -> Any:
    """Give the graph of layers that a call of the model runs through; None where it is code."""
    graph = getattr(model, "_functional", model)
    known = getattr(type(graph).call, "__qualname__", "") == "Functional.call"
    return graph if known else None


def _run(
    model: Any, towers: Sequence[Tower], xs: Sequence[Any], shares: Sequence[Any]
) -> list[Any]:
    import tensorflow as tf

    graph = _graph(model)

    def on_each(operation: Any) -> Callable[..., Any]:
        def call(*args: Any, **named: Any) -> Any:
            if getattr(operation, "_call_has_training_arg", False):
                named["training"] = True  # as Keras gives it to every layer of a model
            given = [_picked((args, named), i) for i in range(len(towers))]
            if met(operation):
                results = _run(operation, towers, [args[0] for args, _ in given], shares)
            else:
                moments = contextlib.nullcontext()
                if _normalizes(operation):
                    moments = _with_moments(operation, *_moments(operation, towers, given, shares))
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
            inputs.append(graph._standardize_inputs(x))
    outputs = graph._run_through_graph([_Each(each) for each in zip(*inputs)], on_each)  # noqa: B905
    return [_picked(outputs, i) for i in range(len(towers))]


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
            mask = named.get("mask", getattr(x, "_keras_mask", None))
            x = tf.cast(x, keras.backend.result_type(x.dtype, "float32"))
            mean, variance = layer._moments(x, mask)
            means.append(mean)
            variances.append(variance)
            count = share if mask is None else tf.math.count_nonzero(mask)
            counts.append(tf.cast(count, x.dtype))
    with tf.device(HOST), tf.name_scope(layer.name):
        weights = [count / tf.add_n(counts) for count in counts]
        mean = tf.add_n([w * m for w, m in zip(weights, means, strict=True)])
        apart = [v + tf.square(m - mean) for v, m in zip(variances, means, strict=True)]
        return mean, tf.add_n([w * a for w, a in zip(weights, apart, strict=True)])


@contextlib.contextmanager
def _with_moments(layer: Any, mean: Any, variance: Any) -> Iterator[None]:
    """Let a layer take these moments for those of its inputs."""
    layer.__dict__["_moments"] = lambda inputs, mask: (mean, variance)
    try:
        yield
    finally:
        del layer.__dict__["_moments"]
