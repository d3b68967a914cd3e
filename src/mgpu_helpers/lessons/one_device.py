"""The words in front of a command that give it one device: for lesson 04."""

from __future__ import annotations

import sys

from mgpu_helpers import jobs


def on(device: int) -> list[str]:
    """Give the words to put in front of a command that may use only this GPU, or this core."""
    kind, _ = jobs.allowed()
    if kind == "GPU":
        return ["env", "CUDA_DEVICE_ORDER=PCI_BUS_ID", f"CUDA_VISIBLE_DEVICES={device}"]
    # macOS has no taskset: scripts share all cores there.
    pinned = ["taskset", "--cpu-list", str(device)] if sys.platform == "linux" else []
    return ["env", "CUDA_VISIBLE_DEVICES=-1", *pinned]
