"""Limit what TensorFlow takes of a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mgpu_helpers import nvml
from mgpu_helpers._later import tf


def logical(gpu: Any, limits: Sequence[int]) -> None:
    """Cut a GPU of `tf.config.list_physical_devices` into logical ones with these limits in MiB.

    What TensorFlow accepts and does not do is refused: a limit for a GPU that grows, and limits
    that are more than the GPU has.

    >>> logical(tf.config.list_physical_devices("GPU")[0], [1024, 2048])  # doctest: +SKIP
    """
    # CUDA may number the GPUs in another order than the driver: none of them has more than this.
    most = max((card.memory_total or 0 for card in nvml.query().gpus), default=0) // 2**20
    if most and sum(limits) > most:
        raise ValueError(
            f"limits of {' + '.join(map(str, limits))} = {sum(limits)} MiB are more than the "
            f"{most} MiB that a GPU has here: use smaller limits."
        )
    if tf.config.experimental.get_memory_growth(gpu):
        raise ValueError(
            f"{gpu.name} grows, which does not go with a limit: set_memory_growth(gpu, False) "
            "first, or leave the limits out."
        )
    parts = [tf.config.LogicalDeviceConfiguration(memory_limit=limit) for limit in limits]
    tf.config.set_logical_device_configuration(gpu, parts)
