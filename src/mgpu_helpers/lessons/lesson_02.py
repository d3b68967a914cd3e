"""What the cases of lesson 02 share: a small model, a slow input, traces, and the patient."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from mgpu_helpers import timing, towers, trace
from mgpu_helpers._names import short
from mgpu_helpers.devices.plan import planned
from mgpu_helpers.lessons import digits

READ = 0.12  # seconds that a batch takes to be read, longer than its step: it hides the shorter one
TRIES = 5  # traces of a step, of which the fastest are kept: other programs disturb some
PASS = 4  # batches in a pass of the exercise
CAUSES = frozenset({1, 4, 5})  # the exercise's, by the numbers of the patients
layers = keras.layers


def many() -> int:
    """Say how many times as much work a GPU gets, so that a step takes it over 2 ms as well."""
    return 8 if planned().on_gpus else 1


def model() -> Any:
    """Make a network of three dense layers for digits, always with the same weights."""
    keras.utils.set_random_seed(0)
    return keras.Sequential([
        keras.Input([784]), layers.Dense(many() * 1024, "relu", name="wide"),
        layers.Dense(64, "relu", name="middle"), layers.Dense(10, name="scores"),
    ])  # fmt: skip


def loss() -> Any:
    """Give the loss of scores."""
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def batch(size: int | None = None) -> tuple[Any, Any]:
    """Give a batch of digits on the host; with None its size divides by 1 to 8 devices."""
    images, labels = digits.load(size or 840 * many())
    with tf.device(planned().host):
        return tf.constant(images.reshape(len(images), -1)), tf.constant(labels)


def make_step(where: Sequence[str], sizes: Sequence[int] | None = None) -> Callable[..., Any]:
    """Make a step of the network in towers on devices; sizes are their shards, None is even ones.

    The first device of the plan averages the gradients and updates the weights.
    """
    home, loss_of = planned().devices[0], loss()
    with tf.device(home):
        network = model()
    weights = network.trainable_variables

    def tower(x: Any, y: Any) -> list[Any]:
        with tf.GradientTape() as tape:
            lost = loss_of(y, network(x))
        return [lost, *tape.gradient(lost, weights)]

    @tf.function
    def step(x: Any, y: Any) -> Any:
        with tf.device(planned().host):
            shards = [tf.split(part, sizes or len(where)) for part in (x, y)]
        lost, *mean = towers.average(towers.run(tower, where, *shards), weights=sizes, device=home)
        with tf.device(home):
            for weight, gradient in zip(weights, mean, strict=True):
                weight.assign_sub(0.1 * gradient)
        return lost

    return step


def timed(step: Callable[..., Any], *given: Any) -> Callable[[], None]:
    """Give what runs a step on a batch and waits for the devices."""
    given = given or batch()

    def run() -> None:
        step(*given)
        tf.test.experimental.sync_devices()

    return run


def traces(step: Callable[..., Any], *given: Any) -> list[trace.Trace]:
    """Trace a step on a batch several times; give the three fastest, the fastest last."""
    found = [trace.function_step(step, *(given or batch()))[1] for _ in range(TRIES)]
    return sorted(found, key=lambda each: each.length, reverse=True)[-3:]


def beside(change: Any, before: Callable[[], None], after: Callable[[], None]) -> None:
    """Print what is predicted of a change, and what is measured when both steps run in turn."""
    names = ("before", "after")
    print(change, timing.compare(before, after, warmup=1, repeats=6, names=names), sep="\n")


def read(x: Any, y: Any, seen: Seen | None = None, seconds: float = READ) -> tuple[Any, Any]:
    """Read a batch slowly: what the function of a dataset's map gets and gives are tensors."""

    def wait() -> Any:
        time.sleep(seconds)
        if seen:
            seen.reads += 1
        return np.int64(0)

    with tf.control_dependencies([tf.numpy_function(wait, [], tf.int64)]):
        return tf.identity(x), tf.identity(y)


@dataclass
class Seen:
    """What was done to a patient: batches read, eager calls of its model, and where it was called.

    In a graph it is called once, when the graph is made; "" is where nobody has said a device.
    """

    reads: int = 0
    eager: int = 0
    devices: set[str] = field(default_factory=set)


def patient() -> tuple[Any, Any]:
    """Give a compiled Keras model and its data, whose training is slowed down by three causes."""
    return watched()[:2]


def watched() -> tuple[Any, Any, Seen]:
    """Give the exercise's patient, and what will be seen of its treatment."""
    seen = Seen()

    class Dense(keras.layers.Dense):  # its class, so that copies are seen too
        def call(self, inputs: Any, training: Any = None) -> Any:
            result = super().call(inputs)
            seen.eager += tf.executing_eagerly()
            seen.devices.add(short(getattr(result, "device", None) or ""))
            return result

    keras.utils.set_random_seed(0)
    with tf.device(planned().devices[0]):
        sick = keras.Sequential([
            keras.Input([784]), Dense(many() * 512, "relu"),
            *(layers.Dense(32, "relu", kernel_initializer="he_normal") for _ in range(24)),
            layers.Dense(10),
        ])  # fmt: skip
        sick.compile(keras.optimizers.SGD(1e-3), loss(), run_eagerly=True)
    x, y = batch()
    shades = tf.data.Dataset.from_tensor_slices(tf.linspace(1.0, 0.5, PASS))
    data = shades.map(lambda shade: read(shade * x, y, seen))
    seen.devices.clear()  # those of its building
    return sick, data, seen


def fit(model: Any, data: Any) -> None:
    """Train a model with one pass over the data, on the first device, as the patient does."""
    with tf.device(planned().devices[0]):
        model.fit(data, shuffle=False, verbose=0)
