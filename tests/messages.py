"""The messages of docs/errors.md that can be raised without a GPU, each by a few lines."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from keras_models import keras, tf
from mgpu_helpers import _private
from mgpu_helpers.devices.plan import planned


def _no_such_device() -> Any:
    with tf.Graph().as_default(), tf.device("/GPU:9"):
        return tf.compat.v1.Session().run(tf.constant(1.0) + 1.0)


def _too_late() -> Any:
    cpu = tf.config.list_physical_devices("CPU")[0]
    one = [tf.config.LogicalDeviceConfiguration()]
    return tf.config.set_logical_device_configuration(cpu, one * 99)


def _too_large() -> Any:
    with tf.device(planned().host):
        return tf.zeros([2**25, 2**20])  # 141 TB


def _port_taken() -> Any:
    with socket.socket() as taken:
        taken.bind(("localhost", 0))
        taken.listen()
        address = f"localhost:{taken.getsockname()[1]}"
        return tf.distribute.Server({"worker": [address]}, "worker", 0)


def _replicas() -> Any:
    two = [planned().host, planned().devices[-1]]
    return tf.distribute.MirroredStrategy(two, tf.distribute.ReductionToOneDevice())


def _dense() -> Any:
    return keras.Sequential([keras.Input([4]), keras.layers.Dense(1)])


def _fitted(make: Callable[[], Any], **compiled: Any) -> Any:
    """Fit a model of a scope, which may be compiled outside of it."""
    strategy = _replicas()
    with strategy.scope():
        model = make()
    with strategy.scope() if compiled else contextlib.nullcontext():
        model.compile("adam", "mse", **compiled)
    return model.fit(np.ones([4, 4]), np.ones([4, 1]), verbose=0)


def _without_call() -> Any:
    model = type("GAN", (keras.Model,), {"train_step": lambda model, data: {}})()
    model.dense = keras.layers.Dense(1)
    return model


def _in_a_condition() -> Any:
    def sum_of_all() -> Any:
        return tf.distribute.get_replica_context().all_reduce("sum", tf.constant(1.0))

    strategy, true = _replicas(), tf.constant(True)
    step = lambda: tf.cond(true, sum_of_all, lambda: tf.constant(0.0))  # noqa: E731
    return tf.function(lambda: strategy.run(step))()


def _cycle() -> Any:
    @tf.function
    def circle(x: Any) -> Any:
        a = tf.identity(x)
        b = tf.identity(a)
        _private.wait_for(a.op, [b.op])
        return b

    return circle(tf.constant(1.0))


# After this error no collective of the process works: so it has a process of its own.
_TWO = """
from mgpu_helpers import devices
plan = devices.setup(2)
import keras, numpy as np, tensorflow as tf
for units in (3, 5):
    strategy = tf.distribute.MirroredStrategy(plan.devices)
    with strategy.scope():
        norm = keras.layers.BatchNormalization(synchronized=True)
        model = keras.Sequential([keras.Input([4]), keras.layers.Dense(units), norm])
        model.compile("sgd", "mse")
    model.fit(np.ones([8, 4]), np.ones([8, units]), verbose=0)
"""


_LATE = """
import json, os
os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": ["127.0.0.1:1", "127.0.0.1:2"]},
                                      "task": {"type": "worker", "index": 0}})
from mgpu_helpers import fit
import tensorflow as tf
tf.data.Dataset.range(2)
fit.strategy()
"""


def _alone(code: str, said: str = "") -> Any:
    """Run code in a Python of its own, and raise what it ended with, where it says this, too."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    if done.returncode and said in done.stderr:
        raise RuntimeError(done.stderr)


RAISED: dict[str, Callable[[], Any]] = {
    "Cannot assign a device for operation": _no_such_device,
    "cannot be modified after being initialized": _too_late,
    "Could not start gRPC server": _port_taken,
    "must have the same size and shape": lambda: tf.raw_ops.AddN(
        inputs=[tf.ones([2]), tf.ones([3])]
    ),
    "Attempt to convert a value (PerReplica": lambda: tf.constant(
        _replicas().run(lambda: tf.constant(1.0))
    ),
    "Mixing different tf.distribute.Strategy objects": lambda: _fitted(_dense),
    "called while defining a new graph or a tf.function": _in_a_condition,
    "Trying to access resource": lambda: _fitted(_dense, jit_compile=True),
    "Unable to automatically build the model": lambda: _fitted(_without_call, jit_compile="auto"),
    "nodes in a cycle": _cycle,
    "Tensor had NaN values": lambda: tf.debugging.check_numerics(
        tf.reduce_mean(tf.zeros([0, 3])), "the mean of no examples"
    ),
}

SLOW = {
    "OOM when allocating tensor": _too_large,  # TensorFlow waits 10 s for memory
    "Shape mismatch in the collective instance": lambda: _alone(_TWO),
    "Collective ops must be configured at program startup": lambda: _alone(
        _LATE, "right after devices.setup"  # which is said beneath TensorFlow's words
    ),
}


def raised(words: str) -> Exception:
    """Raise the error of a message, and give it."""
    try:
        (RAISED | SLOW)[words]()
    except Exception as error:
        return error
    raise AssertionError(f"nothing was raised for {words!r}")
