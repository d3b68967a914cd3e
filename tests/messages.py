"""The messages of docs/errors.md that can be raised without a GPU, each by a few lines."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from mgpu_helpers import _private
from mgpu_helpers.devices.plan import planned


def _no_such_device(tf: Any) -> Any:
    with tf.Graph().as_default(), tf.device("/GPU:9"):
        return tf.compat.v1.Session().run(tf.constant(1.0) + 1.0)


def _too_late(tf: Any) -> Any:
    cpu = tf.config.list_physical_devices("CPU")[0]
    one = [tf.config.LogicalDeviceConfiguration()]
    return tf.config.set_logical_device_configuration(cpu, one * 99)


def _too_large(tf: Any) -> Any:
    with tf.device(planned().host):
        return tf.zeros([2**25, 2**20])  # 141 TB


def _port_taken(tf: Any) -> Any:
    with socket.socket() as taken:
        taken.bind(("localhost", 0))
        taken.listen()
        address = f"localhost:{taken.getsockname()[1]}"
        return tf.distribute.Server({"worker": [address]}, "worker", 0)


def _shapes_differ(tf: Any) -> Any:
    return tf.raw_ops.AddN(inputs=[tf.ones([2]), tf.ones([3])])


def _per_replica(tf: Any) -> Any:
    two = [planned().host, planned().devices[-1]]
    strategy = tf.distribute.MirroredStrategy(two, tf.distribute.ReductionToOneDevice())
    return tf.constant(strategy.run(lambda: tf.constant(1.0)))


def _replicas(tf: Any) -> Any:
    two = [planned().host, planned().devices[-1]]
    return tf.distribute.MirroredStrategy(two, tf.distribute.ReductionToOneDevice())


def _another_scope(tf: Any) -> Any:
    import keras
    import numpy as np

    with _replicas(tf).scope():
        model = keras.Sequential([keras.Input([4]), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    return model.fit(np.ones([4, 4]), np.ones([4, 1]), verbose=0)


def _in_a_condition(tf: Any) -> Any:
    def sum_of_all() -> Any:
        return tf.distribute.get_replica_context().all_reduce("sum", tf.constant(1.0))

    strategy, true = _replicas(tf), tf.constant(True)
    step = lambda: tf.cond(true, sum_of_all, lambda: tf.constant(0.0))  # noqa: E731
    return tf.function(lambda: strategy.run(step))()


def _compiled_over_devices(tf: Any) -> Any:
    import keras
    import numpy as np

    with _replicas(tf).scope():
        model = keras.Sequential([keras.Input([4]), keras.layers.Dense(1)])
        model.compile("adam", "mse", jit_compile=True)
    return model.fit(np.ones([4, 4]), np.ones([4, 1]), verbose=0)


def _no_call(tf: Any) -> Any:
    import keras
    import numpy as np

    with _replicas(tf).scope():
        model = type("GAN", (keras.Model,), {"train_step": lambda model, data: {}})()
        model.dense = keras.layers.Dense(1)
        model.compile("adam", "mse")
    return model.fit(np.ones([4, 4]), np.ones([4, 1]), verbose=0)


def _cycle(tf: Any) -> Any:
    @tf.function
    def circle(x: Any) -> Any:
        a = tf.identity(x)
        b = tf.identity(a)
        _private.wait_for(a.op, [b.op])
        return b

    return circle(tf.constant(1.0))


def _not_a_number(tf: Any) -> Any:
    empty = tf.zeros([0, 3])  # what a replica gets of a last batch that is too small
    return tf.debugging.check_numerics(tf.reduce_mean(empty), "the mean of no examples")


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


def _two_strategies(tf: Any) -> Any:
    done = subprocess.run([sys.executable, "-c", _TWO], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr)


_LATE = """
import json, os
os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": ["127.0.0.1:1", "127.0.0.1:2"]},
                                      "task": {"type": "worker", "index": 0}})
from mgpu_helpers import fit
import tensorflow as tf
tf.data.Dataset.range(2)
fit.strategy()
"""


def _too_late_for_workers(tf: Any) -> Any:
    done = subprocess.run([sys.executable, "-c", _LATE], capture_output=True, text=True)
    if "right after devices.setup" in done.stderr:  # which is said beneath TensorFlow's words
        raise RuntimeError(done.stderr)


RAISED: dict[str, Callable[[Any], Any]] = {
    "Cannot assign a device for operation": _no_such_device,
    "cannot be modified after being initialized": _too_late,
    "Could not start gRPC server": _port_taken,
    "must have the same size and shape": _shapes_differ,
    "Attempt to convert a value (PerReplica": _per_replica,
    "Mixing different tf.distribute.Strategy objects": _another_scope,
    "called while defining a new graph or a tf.function": _in_a_condition,
    "Trying to access resource": _compiled_over_devices,
    "Unable to automatically build the model": _no_call,
    "nodes in a cycle": _cycle,
    "Tensor had NaN values": _not_a_number,
}

SLOW = {
    "OOM when allocating tensor": _too_large,  # TensorFlow waits 10 s for memory
    "Shape mismatch in the collective instance": _two_strategies,
    "Collective ops must be configured at program startup": _too_late_for_workers,
}


def raised(words: str) -> Exception:
    """Raise the error of a message, and give it."""
    import tensorflow as tf

    try:
        (RAISED | SLOW)[words](tf)
    except Exception as error:
        return error
    raise AssertionError(f"nothing was raised for {words!r}")
