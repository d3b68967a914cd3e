"""What the patients of lesson 19 share: a small model, a slow input, the exercise's patient."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as tf1

from mgpu_helpers import trace
from mgpu_helpers._names import short
from mgpu_helpers.devices.plan import planned
from mgpu_helpers.lessons import digits, networks

READ = 0.05  # seconds that a batch takes to be read, as if from a disk
PASS = 4  # batches in a pass of the exercise
CAUSES = frozenset({1, 2, 6})  # the exercise's, by the numbers of the patients
layers = keras.layers


def many() -> int:
    """Say how many times as much work a GPU gets, so that a step takes it over 2 ms as well."""
    return 8 if planned().on_gpus else 1


def model(wide: int = 1024, middle: int = 64) -> Any:
    """Make a network of three dense layers for digits, always with the same weights."""
    keras.utils.set_random_seed(0)
    return keras.Sequential([
        keras.Input([784]), layers.Dense(many() * wide, "relu", name="wide"),
        layers.Dense(middle, "relu", name="middle"), layers.Dense(10, name="scores"),
    ])  # fmt: skip


def loss() -> Any:
    """Give the loss of scores."""
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def batch(size: int | None = None) -> tuple[Any, Any]:
    """Give a batch of digits on the host; with None its size divides by 1 to 8 devices."""
    images, labels = digits.load(size or 840 * many())
    with tf.device(planned().host):
        return tf.constant(images.reshape(len(images), -1)), tf.constant(labels)


def stamped(step: Callable[..., Any]) -> Callable[..., Any]:
    """Give a step that also returns when it began and when it had its loss, in seconds."""
    host = planned().host

    @tf.function
    def run(*given: Any) -> tuple[Any, Any, Any]:
        with tf.device(host):
            begin = tf.timestamp()
        with tf.control_dependencies([begin]):
            loss = step(*given)
        with tf.device(host):
            seen = tf.identity(loss)  # here when a GPU has computed it, and not when it was asked
            with tf.control_dependencies([seen]):
                return seen, begin, tf.timestamp()

    return run


def timed(step: Callable[..., Any], *given: Any) -> Callable[[], None]:
    """Give what runs a step on a batch and waits for the devices, as lesson 15 has built it."""
    given = given or batch()

    def run() -> None:
        step(*given)
        tf.test.experimental.sync_devices()

    return run


def read(x: Any, y: Any, seen: Seen | None = None) -> tuple[Any, Any]:
    """Read a batch slowly: what the function of a dataset's map gets and gives are tensors."""

    def wait() -> Any:
        time.sleep(READ)
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


def cut(colocate: bool) -> tuple[Any, Any]:
    """Give a step of lesson 12, on two devices, and its traces; gradients are colocated or not."""
    plan = planned()
    first, second = plan.devices[0], plan.devices[-1]
    images, labels = digits.load(256 * many())
    with tf1.Graph().as_default() as graph:
        with tf1.device(plan.host):
            x, y = (tf1.placeholder(each.dtype, each.shape) for each in (images, labels))
        network = networks.tensorlight(width=0.25 * many())
        front, rear = networks.stages(network, ["conv2"], [first, second])
        with tf1.device(first):
            middle = front.function(front.weights, x)
        with tf1.device(second):
            value = networks.loss(y, rear.function(rear.weights, middle))
        with tf1.device(first):
            descent = tf1.train.GradientDescentOptimizer(0.01)
            update = descent.minimize(value, var_list=[*front.weights.values(),
                *rear.weights.values()], colocate_gradients_with_ops=colocate)  # fmt: skip
            start = tf1.global_variables_initializer()
    session = tf1.Session(graph=graph, config=plan.session_config(soft_placement=True))
    session.run(start)
    feed = {x: images, y: labels}
    session.run(update, feed)
    traces = [trace.session_step(session, update, feed)[1] for _ in range(3)]
    return lambda: session.run(update, feed), traces


def fit(model: Any, data: Any) -> None:
    """Train a model with one pass over the data, on the first device, as the patient does."""
    with tf.device(planned().devices[0]):
        model.fit(data, shuffle=False, verbose=0)


PRODUCTS = """
import os, sys, time
core, begin = int(sys.argv[1]), float(sys.argv[2])
if core >= 0 and hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, {(2 * sorted(os.sched_getaffinity(0)))[core]})
import numpy as np
x, done = np.ones([700, 700], "float32"), 0
x @ x
time.sleep(max(0, begin - time.time()))
end = time.time() + 0.5
while time.time() < end:
    x @ x
    done += 1
print(done / 0.5)
"""


def two_processes(pinned: bool) -> list[float]:
    """Let two processes multiply at once; give how many products a second each did.

    Each has as many threads as it finds cores: all of them, or one that is its own. Pinning needs
    Linux and two cores; elsewhere the threads are left as they are.
    """
    begin, cores = str(time.time() + 1.0), ("0", "1") if pinned else ("-1", "-1")
    commands = [[sys.executable, "-c", PRODUCTS, core, begin] for core in cores]
    children = [subprocess.Popen(each, stdout=subprocess.PIPE, text=True) for each in commands]
    return [float(child.communicate(timeout=60)[0]) for child in children]
