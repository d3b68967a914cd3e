"""What lesson 23 needs beside its own code: comparisons, and what became of old names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from importlib.util import find_spec
from typing import Any

import numpy as np

from mgpu_helpers._formatting import counted
from mgpu_helpers.devices.plan import planned
from mgpu_helpers.trace.step import Trace

#: Some calls of the lesson's sources, and what takes their place: docs/sources.md has them all.
CALLS = {
    "tf.Session": "model.fit",
    "tf.placeholder": "arguments of fit",
    "tf.get_variable": "a layer's weights",
    "tf.variable_scope": "one model, which each device calls",
    "tf.gradients": "fit, or a tape",
    "tf.train.AdamOptimizer": "keras.optimizers.Adam(epsilon=1e-8)",
    "tf.train.ExponentialMovingAverage": "use_ema=True, with a constant decay",
    "tf.initialize_all_variables": "nothing: Keras does it",
    "tf.get_collection": "model.losses, or model.trainable_weights",
    "tf.layers.conv2d": "layers.Conv2D",
    "tf.nn.dropout": "layers.Dropout, of 1 - keep",
    "tf.contrib.layers.l2_regularizer": "keras.regularizers.L2, of half the scale",
    "tensorflow.examples.tutorials.mnist": "keras.datasets.mnist",
}


def apart(start: Sequence[Any], ours: Sequence[Any], theirs: Sequence[Any]) -> float:
    """Give the largest difference of two lists of weights, by the largest change of each weight.

    >>> apart([[0.0, 0.0]], [[1.0, 2.0]], [[1.0, 4.0]])
    0.5
    """
    rows = [[np.asarray(each) for each in row] for row in zip(start, ours, theirs, strict=False)]
    return max(float(np.abs(a - b).max() / np.abs(b - first).max()) for first, a, b in rows)


def backward(step: Trace) -> list[str]:
    """Say how many convolutions of the backward pass each place computed, and what it sent."""
    plan = planned()
    lines = []
    for place in (plan.host, *plan.devices):
        done = sum(op.device == place and "Conv2DBackprop" in op.type for op in step.ops)
        sent = sum(copy.bytes or 0 for copy in step.copies if copy.source == place)
        lines.append(f"{place}  {counted(done, 'convolution')} backward, sends {sent / 1e6:.1f} MB")
    return lines


def fastest(step: Callable[[], Trace]) -> Trace:
    """Trace a step ten times, and give the trace that other programs disturbed least."""
    return min((step() for _ in range(10)), key=lambda each: each.length)


def today() -> str:
    """List the calls: where each of them still is, and what takes its place."""
    rows = [("call", "in", "today"), *((name, _where(name), new) for name, new in CALLS.items())]
    return "\n".join(f"{name:35}  {where:4}  {new}" for name, where, new in rows)


def _where(name: str) -> str:
    """Say which module still has a name: "tf", "tf1", or none ("gone")."""
    import tensorflow as tf

    if name.startswith("tensorflow."):
        return "tf" if find_spec("tensorflow.examples") else "gone"
    for short, module in (("tf", tf), ("tf1", tf.compat.v1)):
        try:
            reduce(getattr, name.split(".")[1:] or [name], module)
        except AttributeError:  # also of what Keras 3 has no more
            continue
        return short
    return "gone"
