"""GPUs that are not there: to try TensorFlow's rules for them, and a runner's.

Lessons 05 and 16 do so.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator, Mapping
from typing import Any
from unittest import mock

from mgpu_helpers import _private, nvml

OTHER = 4242  # the number of another user
LIMITS = ("MGPU_MODE", "CUDA_VISIBLE_DEVICES", "SLURM_STEP_GPUS", "SLURM_JOB_GPUS")


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


def gpu_options() -> Any:
    """Give the `GPUOptions` with which TensorFlow would start, as `tf.config` was told so far."""
    options = _private.configured().gpu_options
    if not options.experimental.ByteSize():
        options.ClearField("experimental")  # TensorFlow leaves it there with nothing in it
    return options


@contextlib.contextmanager
def pretend_server(used: Mapping[int, int], n: int = 4) -> Iterator[None]:
    """Let a runner see n GPUs of 80 GiB that are not there, with locks of their own.

    `used` says how many GiB a process of another user holds, by the number of the GPU. Jobs find
    such a GPU in their environment, and nothing runs on it.
    """

    def gpu(i: int) -> nvml.Gpu:
        held = used.get(i, 0) * 2**30
        processes = (nvml.Process(1, held, None, OTHER),) if i in used else ()
        memory = 80 * 2**30, held, 80 * 2**30 - held
        return nvml.Gpu(i, "pretended", None, None, *memory, 0, None, None, None, processes)

    report = nvml.DriverReport(tuple(map(gpu, range(n))), None, None, None)
    with (
        mock.patch.object(nvml, "query", lambda: report),
        tempfile.TemporaryDirectory() as locks,
        mock.patch.dict(os.environ, TMPDIR=locks),
    ):
        for name in LIMITS:
            os.environ.pop(name, None)
        yield
