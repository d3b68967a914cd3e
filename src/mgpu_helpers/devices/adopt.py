"""Make a plan of the devices that TensorFlow has, where a notebook has set it up by itself."""

from __future__ import annotations

from typing import Any

from mgpu_helpers.devices.machine import describe
from mgpu_helpers.devices.plan import Plan, current, remember
from mgpu_helpers.names import order, short
from mgpu_helpers.wording import counted


def adopt() -> Plan:
    """Return a plan of the devices that TensorFlow has, and change nothing about them.

    It is for a notebook that has set TensorFlow up by itself; `setup` is for all others. The
    devices are TensorFlow's logical GPUs; without any, its logical CPUs from the second on; with a
    single CPU, that one. Threads, memory growth and limits, and TF32 stay as the notebook set them.
    Where TensorFlow has not started, it starts now, with what it takes by itself. After `setup` or
    an earlier `adopt` it returns the plan that was made then.

    >>> adopt() is plan
    True
    """
    if plan := current():
        return plan
    import tensorflow as tf

    names = [short(device.name) for device in tf.config.list_logical_devices()]
    gpus = sorted((name for name in names if name.startswith("/GPU")), key=order)
    cpus = sorted((name for name in names if name.startswith("/CPU")), key=order)
    visible, seen = (
        tf.config.get_visible_devices("GPU"), len(tf.config.list_physical_devices("GPU"))
    )  # fmt: skip
    count, machine, _ = describe("adopted" if gpus else "cores", len(visible))
    devices = gpus or cpus[1:] or cpus
    if gpus:
        real = [what for gpu in visible for what in _parts(tf, gpu)]
        if len(real) != len(gpus):  # made by what tf.config does not tell of
            real = ["GPU"] * len(gpus)
    else:
        threads = tf.config.threading.get_intra_op_parallelism_threads() or count
        real = [f"{counted(threads, 'thread')} for an operation"] * len(devices)
    note = f"{counted(seen, 'GPU')} seen" if seen else "no GPU"
    return remember(Plan("adopted", "/CPU:0", tuple(devices), tuple(real), count, machine, note))


def _parts(tf: Any, gpu: Any) -> list[str]:
    """Say what each logical GPU of a GPU is, in the order of their names."""
    name = tf.config.experimental.get_device_details(gpu).get("device_name", "GPU")
    parts = tf.config.get_logical_device_configuration(gpu) or [None]
    limits = [getattr(part, "memory_limit", None) for part in parts]
    shared = f", shared by {counted(len(parts), 'device')}" if len(parts) > 1 else ""
    return [f"{int(limit)} MiB of {name}{shared}" if limit else name + shared for limit in limits]
