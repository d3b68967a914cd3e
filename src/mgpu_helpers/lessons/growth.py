"""TensorFlow's allocator for GPUs, put to work on the host, where any machine can watch it grow.

Lesson 05 compares its log with the rule of its regions.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys

UNITS = {"K": 2**10, "M": 2**20, "G": 2**30}
HOLD = """
import sys
import tensorflow as tf

size, count = map(int, sys.argv[1:])
for turn in range(2):
    made = [tf.fill([size // 4], float(number)) for number in range(count)]
    del made
"""
BFC = {"TF_CPU_ALLOCATOR_USE_BFC": "true", "TF_CPP_VMODULE": "bfc_allocator=1",
       "TF_CPP_MIN_LOG_LEVEL": "0", "CUDA_VISIBLE_DEVICES": "-1"}  # fmt: skip


def on_host(size: int, count: int) -> list[int]:
    """Make a small tensor and `count` of `size` bytes in a new process; delete and make them again.

    Gives the bytes of each region that the allocator took.
    """
    done = subprocess.run(
        [sys.executable, "-c", HOLD, str(size), str(count)],
        capture_output=True, text=True, env=os.environ | BFC,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    found = re.findall(r"Extending allocation by ([\d.]+)([KMG])iB", done.stderr)
    return [round(float(number) * UNITS[unit]) for number, unit in found]
