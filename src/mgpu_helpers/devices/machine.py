"""What the processor is, and how many of its cores this process may use."""

from __future__ import annotations

import functools
import os
import platform
import re
from pathlib import Path

from mgpu_helpers.wording import counted


def describe(mode: str, gpus: int) -> tuple[int, str, str]:
    """Give the number of cores, the machine in words, and what the plan leaves unused."""
    count = cores()
    if mode == "cores":
        note = f"{counted(gpus, 'GPU')} not used (MGPU_MODE=cores)" if gpus else "no GPU"
    else:
        note = f"{counted(gpus, 'GPU')} seen"
    machine = f"{processor()}, {counted(count, 'core')}"
    if mode != "cores":
        machine = f"{counted(gpus, 'GPU')}, {machine}"
    return count, machine, note


@functools.cache
def cores() -> int:
    """Count the cores that this process may use: its affinity, and a container's share."""
    cores = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        cores = min(cores, max(1, round(int(quota) / int(period))))
    except (OSError, ValueError):
        pass  # no such file outside Linux containers, and "max" where there is no limit
    return cores


@functools.cache
def processor() -> str:
    """Name the processor as the system does."""
    try:
        found = re.search(r"^model name\s*: (.+)$", Path("/proc/cpuinfo").read_text(), re.M)
    except OSError:
        found = None
    return found[1].strip() if found else platform.processor() or platform.machine()
