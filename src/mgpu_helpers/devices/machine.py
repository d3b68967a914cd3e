"""What of this machine the process may use: cores, and GPUs as CUDA_VISIBLE_DEVICES names them.

CUDA says nothing of a mistake in it: it drops everything from the first entry on that is not
there, and shows no GPU at all when one is named twice.
"""

from __future__ import annotations

import functools
import json
import os
import platform
import re
from collections.abc import Mapping
from pathlib import Path

from mgpu_helpers import nvml
from mgpu_helpers._formatting import counted

NAME = "CUDA_VISIBLE_DEVICES"


def affinity() -> list[int]:
    """List the numbers of the cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


@functools.cache
def cores() -> int:
    """Count the cores that this process may use: its affinity, and a container's share."""
    cores = len(affinity())
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
        model = re.search(r"^model name\s*: (.+)$", Path("/proc/cpuinfo").read_text(), re.M)
    except OSError:
        model = None
    return model[1].strip() if model else platform.processor() or platform.machine()


def named(text: str, uuids: Mapping[int, str | None]) -> list[int | str]:
    """List what the text names: nvidia-smi's numbers, and MIG devices as they are written.

    `uuids` are those of the machine's GPUs by nvidia-smi's number. A MIG device is not looked up:
    it is whatever CUDA makes of it. A sentence is raised where CUDA would drop an entry.

    >>> named("1,GPU-aa", {0: "GPU-aabb", 1: "GPU-ccdd"})
    [1, 0]
    """
    found: list[int | str] = []
    entries = re.sub(r"[\s,]+$", "", text)
    for entry in map(str.strip, entries.split(",") if entries else ()):
        if entry in ("-1", "NoDevFiles"):  # CUDA reads no further; the second is Slurm's
            break
        fits: list[int | str] = [
            i for i, uuid in uuids.items()
            if entry.isdecimal() and int(entry) == i
            or entry.startswith("GPU-") and (uuid or "").startswith(entry)
        ]  # fmt: skip
        if entry.startswith("MIG-"):
            fits = [entry]
        if len(fits) != 1:
            raise RuntimeError(
                f"{NAME}={text!r} has {entry!r}, which is not one of this machine's "
                f"{counted(len(uuids), 'GPU')}: use nvidia-smi's numbers, "
                f"{', '.join(map(str, uuids))}, or unset it."
            )
        if fits[0] in found:
            raise RuntimeError(
                f"{NAME}={text!r} names {entry!r} a second time, and then CUDA shows no GPU at "
                "all: name each once, or unset it."
            )
        found += fits
    return found


def check(report: nvml.DriverReport) -> list[int | str]:
    """List the GPUs that CUDA_VISIBLE_DEVICES leaves; a sentence is raised as in `named`."""
    text, uuids = os.environ.get(NAME), {gpu.index: gpu.uuid for gpu in report.gpus}
    if text is None or not uuids:  # without a driver there is nothing to compare with
        return list(uuids)
    return named(text, uuids)


def hide(report: nvml.DriverReport) -> int:
    """Hide all GPUs from CUDA, here and in processes started here; count those that it showed.

    Keras looks at the list of GPUs that there are, not at what `set_visible_devices` left of them,
    and compiles with XLA where it finds one. CUDA reads its environment once, when TensorFlow first
    lists the GPUs. So it is too late after that.
    """
    try:
        showed = len(check(report))
    except RuntimeError:  # it names what is not there, which does not matter here
        showed = 0
    os.environ[NAME] = "-1"
    return showed


def mig() -> bool:
    """Say whether CUDA_VISIBLE_DEVICES names a part of a GPU, which the driver calls MIG device."""
    return any(entry.strip().startswith("MIG-") for entry in os.environ.get(NAME, "").split(","))


def shown(report: nvml.DriverReport) -> list[nvml.Gpu] | None:
    """List the driver's GPUs as CUDA and TensorFlow number them; None where that is not known."""
    if os.environ.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID" or mig():
        return None
    gpus = {gpu.index: gpu for gpu in report.gpus}
    return [gpus[i] for i in check(report) if isinstance(i, int)]


def one_of_several_workers() -> bool:
    """Say whether TF_CONFIG makes this process one of several that train together."""
    try:
        cluster = json.loads(os.environ.get("TF_CONFIG") or "{}").get("cluster", {})
        return sum(len(cluster.get(kind, ())) for kind in ("chief", "worker")) > 1
    except (ValueError, AttributeError, TypeError):  # TensorFlow says what is wrong with it
        return False
