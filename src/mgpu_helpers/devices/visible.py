"""What CUDA_VISIBLE_DEVICES names, read as CUDA reads it, and which GPUs that leaves.

CUDA says nothing of a mistake in it: it drops everything from the first entry on that is not
there, and shows no GPU at all when one is named twice.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from mgpu_helpers import nvml
from mgpu_helpers.wording import counted

NAME = "CUDA_VISIBLE_DEVICES"


def named(text: str, uuids: Mapping[int, str | None]) -> list[int | str]:
    """List what the text names: nvidia-smi's numbers, and MIG devices as they are written.

    `uuids` are those of the machine's GPUs by nvidia-smi's number. A MIG device is not looked up:
    it is whatever CUDA makes of it. A sentence is raised where CUDA would drop an entry.

    >>> named("1,GPU-aa", {0: "GPU-aabb", 1: "GPU-ccdd"})
    [1, 0]
    """
    found: list[int | str] = []
    entries = [entry.strip() for entry in text.split(",")]
    while entries and not entries[-1]:
        entries.pop()
    for entry in entries:
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


def check(report: nvml.DriverReport) -> None:
    """Raise a sentence where CUDA_VISIBLE_DEVICES names what is not there, or names it twice."""
    text = os.environ.get(NAME)
    if text is not None and report.gpus:  # without a driver there is nothing to compare with
        named(text, {gpu.index: gpu.uuid for gpu in report.gpus})


def hide(report: nvml.DriverReport) -> int:
    """Hide all GPUs from CUDA, here and in processes started here; count those that it showed.

    Keras looks at the list of GPUs that there are, not at what `set_visible_devices` left of them,
    and compiles with XLA where it finds one. CUDA reads its environment once, when TensorFlow first
    lists the GPUs. So it is too late after that.
    """
    text, showed = os.environ.get(NAME), len(report.gpus)
    if text is not None:
        try:
            showed = len(named(text, {gpu.index: gpu.uuid for gpu in report.gpus}))
        except RuntimeError:  # it names what is not there, which does not matter here
            showed = 0
    os.environ[NAME] = "-1"
    return showed


def mig() -> bool:
    """Say whether CUDA_VISIBLE_DEVICES names a part of a GPU, which the driver calls MIG device."""
    return any(entry.strip().startswith("MIG-") for entry in os.environ.get(NAME, "").split(","))


def shown(report: nvml.DriverReport) -> list[nvml.Gpu] | None:
    """List the driver's GPUs as CUDA and TensorFlow number them; None where that is not known."""
    text = os.environ.get(NAME)
    if os.environ.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID" or mig():
        return None
    if text is None:
        return list(report.gpus)
    gpus = {gpu.index: gpu for gpu in report.gpus}
    found = named(text, {i: gpu.uuid for i, gpu in gpus.items()})
    return [gpus[i] for i in found if isinstance(i, int)]
