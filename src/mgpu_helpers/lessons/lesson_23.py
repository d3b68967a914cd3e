"""What lesson 23 needs beside its own code: a Keras model, and what became of old names."""

from __future__ import annotations

from functools import reduce
from importlib.util import find_spec
from typing import Any

from mgpu_helpers._formatting import counted
from mgpu_helpers.devices.plan import planned
from mgpu_helpers.trace.step import Trace

#: Some calls of the lesson's sources, and what takes their place: docs/sources.md has them all.
CALLS = {
    "tf.Session": "model.fit",
    "tf.placeholder": "arguments of fit",
    "tf.get_variable": "a layer's weights",
    "tf.variable_scope": "one model, which each device calls",
    "tf.gradients": "fit; in a graph it now always colocates",
    "tt.training.average_gradients": "fit.use(model, plan)",
    "tf.train.AdamOptimizer": "keras.optimizers.Adam(epsilon=1e-8)",
    "tf.train.ExponentialMovingAverage": "use_ema=True in a Keras optimizer",
    "tf.initialize_all_variables": "nothing: Keras does it",
    "tf.get_collection": "model.losses",
    "tf.layers.conv2d": "layers.Conv2D",
    "tf.nn.dropout": "layers.Dropout, of 1 - keep",
    "tf.contrib.layers.l2_regularizer": "keras.regularizers.L2, of half the scale",
    "tensorflow.examples.tutorials.mnist": "keras.datasets.mnist",
}


def model() -> Any:
    """Make the network of lesson 07, compiled: plain SGD shows what a step does."""
    import keras

    keras.utils.set_random_seed(9)
    layers = keras.layers
    stack = [
        layers.Conv2D(32, 7, padding="same", activation="relu"),
        layers.MaxPool2D(4),
        layers.Conv2D(16, 3, padding="same", activation="relu"),
        layers.Flatten(),
        layers.Dense(10),
    ]
    made = keras.Sequential([keras.Input([28, 28, 1]), *stack])
    entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    made.compile(keras.optimizers.SGD(0.3), entropy)
    return made


def backward(step: Trace) -> list[str]:
    """Say how many convolutions of the backward pass each place computed, and what it sent."""
    plan = planned()
    lines = []
    for place in (plan.host, *plan.devices):
        done = sum(op.device == place and "Conv2DBackprop" in op.type for op in step.ops)
        sent = sum(copy.bytes or 0 for copy in step.copies if copy.source == place)
        lines.append(f"{place}  {counted(done, 'convolution')} backward, sends {sent / 1e6:.1f} MB")
    return lines


def today() -> str:
    """List the calls: where each of them still is, and what takes its place."""
    return "\n".join(f"{name:35}  {_where(name):4}  {new}" for name, new in CALLS.items())


def _where(name: str) -> str:
    """Say which module still has a name: "tf", "tf1", none ("gone"), or its author's own one."""
    import tensorflow as tf

    if name.startswith("tt."):  # tensorlight
        return "own"
    if name.startswith("tensorflow."):
        return "tf" if find_spec("tensorflow.examples") else "gone"
    for short, module in (("tf", tf), ("tf1", tf.compat.v1)):
        try:
            reduce(getattr, name.split(".")[1:] or [name], module)
        except AttributeError:  # also of what Keras 3 has no more
            continue
        return short
    return "gone"
