"""GPUs that are not there, to try TensorFlow's rules for them.

Lesson 02 does so.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from mgpu_helpers import _private


@contextlib.contextmanager
def pretend_gpus(n: int) -> Iterator[list[Any]]:
    """Give n GPUs that are not there, and in the block a TensorFlow that has not started.

    Settings can be made and refusals seen, but nothing runs on such a GPU. After the block
    everything is as it was.
    """
    import tensorflow as tf

    gpus = [tf.config.PhysicalDevice(f"/physical_device:GPU:{i}", "GPU") for i in range(n)]
    with _private.pretended(gpus):
        yield gpus
