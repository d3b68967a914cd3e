"""Limit what TensorFlow takes of a GPU; and GPUs that are not there, to try its rules."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from mgpu_helpers import nvml, private
from mgpu_helpers.devices.plan import MEBIBYTE, MOST
from mgpu_helpers.wording import whole_number


def logical(gpu: Any, limits: Sequence[int]) -> None:
    """Cut a GPU of `tf.config.list_physical_devices` into logical ones with these limits in MiB.

    >>> with pretend_gpus(1) as gpus:
    ...     logical(gpus[0], [1024, 2048])
    ...     len(tf.config.get_logical_device_configuration(gpus[0]))
    2
    """
    import tensorflow as tf

    limits = [whole_number("limit", limit, "a number of MiB", 1) for limit in limits]
    if not limits:
        raise ValueError("no limits: give one in MiB for each logical GPU, such as [1024, 1024].")
    # CUDA may number the GPUs in another order than the driver: none of them has more than this.
    most = max((card.memory_total or 0 for card in nvml.query().gpus), default=0) // MEBIBYTE
    if most and sum(limits) > most:
        raise ValueError(
            f"limits of {' + '.join(map(str, limits))} = {sum(limits)} MiB are more than the "
            f"{most} MiB that a GPU has here: use smaller limits."
        )
    _check_not_started("a GPU cannot be cut any more")
    if tf.config.experimental.get_memory_growth(gpu):
        raise ValueError(
            f"{gpu.name} grows, which does not go with a limit: set_memory_growth(gpu, False) "
            "first, or leave the limits out."
        )
    make = tf.config.LogicalDeviceConfiguration
    tf.config.set_logical_device_configuration(gpu, [make(memory_limit=mib) for mib in limits])


@contextlib.contextmanager
def pretend_gpus(n: int) -> Iterator[list[Any]]:
    """Give n GPUs that are not there, and in the block a TensorFlow that has not started.

    To try its rules: settings can be made and refusals seen, but nothing runs on such a GPU. After
    the block everything is as it was.

    >>> with pretend_gpus(2) as gpus:
    ...     [gpu.name for gpu in tf.config.list_physical_devices("GPU")]
    ['/physical_device:GPU:0', '/physical_device:GPU:1']
    """
    import tensorflow as tf

    n = whole_number("n", n, "a number of GPUs", 1)
    if n > MOST:
        raise ValueError(f"n={n} is more than any machine has: use 1 to {MOST}.")
    gpus = [tf.config.PhysicalDevice(f"/physical_device:GPU:{i}", "GPU") for i in range(n)]
    with private.pretended(gpus):
        yield gpus


def _check_not_started(what: str) -> None:
    if private.started():
        raise RuntimeError(
            f"TensorFlow has started, and {what}: do it first in a new process, or restart the "
            "kernel."
        )
