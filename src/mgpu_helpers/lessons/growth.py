"""TensorFlow's allocator for GPUs, put to work on the host, where any machine can watch it grow.

Lesson 02 compares its log with the rule of its regions.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterable
from typing import Any

MIB = 2**20
UNITS = {"K": 2**10, "M": MIB, "G": 2**30}
HOLD = """
import sys
import tensorflow as tf

size, count = map(int, sys.argv[1:])
for turn in range(2):
    made = [tf.fill([size // 4], float(number)) for number in range(count)]
    print(tf.config.experimental.get_memory_info("CPU:0")["current"])
    del made
"""
BFC = {"TF_CPU_ALLOCATOR_USE_BFC": "true", "TF_CPP_VMODULE": "bfc_allocator=1",
       "TF_CPP_MIN_LOG_LEVEL": "0", "CUDA_VISIBLE_DEVICES": "-1"}  # fmt: skip


def regions(sizes: Iterable[int]) -> list[int]:
    """Give the bytes of each region that growth takes for tensors of so many bytes, in turn.

    A region too small for its tensor is doubled until it fits; one that fits at once makes the
    next twice as large. What the allocator hands out with a tensor is left out.
    """
    taken, region, free = [], 2 * MIB, 0
    for size in sizes:
        if free < size:
            fits = size <= region
            while region < size:
                region *= 2
            taken.append(region)
            free = region
            if fits:
                region *= 2
        free -= size
    return taken


def on_host(size: int, count: int) -> dict[str, Any]:
    """Make a small tensor and `count` of `size` bytes in a new process; delete and make them again.

    "regions" are all that the allocator took; "handed_out" is what it says that the tensors held
    at first, with the rest of a piece that is too small to be cut off.
    """
    done = subprocess.run(
        [sys.executable, "-c", HOLD, str(size), str(count)],
        capture_output=True, text=True, env=os.environ | BFC,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    found = re.findall(r"Extending allocation by ([\d.]+)([KMG])iB", done.stderr)
    regions = [round(float(number) * UNITS[unit]) for number, unit in found]
    return {"regions": regions, "handed_out": int(done.stdout.split()[0])}
