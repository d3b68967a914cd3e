"""The facts about a machine as lines of text."""

from __future__ import annotations

import os
import platform
import textwrap

from mgpu_helpers import nvml
from mgpu_helpers.doctor.diagnosis import diagnose
from mgpu_helpers.doctor.facts import Facts
from mgpu_helpers.wording import table

OPEN = (
    "TF_CONFIG is set. TensorFlow listens on all interfaces of this machine, whatever address it "
    "names, and asks nobody for a password: let only the other workers reach that port."
)


def head(facts: Facts) -> str:
    """Write the versions and the driver: what is known before TensorFlow is imported.

    >>> from mgpu_helpers.doctor import gather
    >>> print(head(gather()))
    python   3...
    versions mgpu_helpers ...
    driver   ...
    """
    python = f"{platform.python_version()} on {platform.system()} {facts.machine}"
    versions = ", ".join(f"{name} {version}" for name, version in facts.versions.items())
    driver = facts.driver
    if driver.driver:
        said = f"{driver.driver}, supports CUDA up to {driver.cuda or 'a version it does not say'}"
        said += "" if driver.gpus else "; it finds no GPU"
    else:
        said = driver.reason or "not known"
    return "\n".join([row("python", python), row("versions", versions), row("driver", said)])


def body(facts: Facts) -> str:
    """Write what TensorFlow was built with, the GPUs in every order, who uses them, what is wrong.

    >>> from mgpu_helpers.doctor import gather, with_tensorflow
    >>> print(body(with_tensorflow(gather())))
    built    TensorFlow ...
    GPUs     ...
    """
    lines = []
    if facts.tensorflow is not None:
        cuda, cudnn = facts.tensorflow.cuda, facts.tensorflow.cudnn
        built = f"with CUDA {cuda} and cuDNN {cudnn}" if cuda else "for the CPU only, without CUDA"
        lines.append(row("built", f"TensorFlow {built}"))
    lines += [f"{'' if i else 'GPUs':9}{line}" for i, line in enumerate(_gpu_table(facts))]
    others = [f"GPU {gpu.index} ({why})" for gpu in facts.driver.gpus if (why := gpu.others())]
    if others:
        lines.append(row("in use", f"{', '.join(others)}; mgpu run leaves alone what is in use"))
    if facts.cluster is not None:
        lines.append(row("cluster", OPEN))
    lines += [row("problem", cause) for cause in diagnose(facts)]
    return "\n".join(lines)


def row(label: str, text: str) -> str:
    """Lay out a label and a text as the plan does, over as many lines as it takes.

    >>> row("host", "/CPU:0")
    'host     /CPU:0'
    """
    return textwrap.fill(text, 100, initial_indent=f"{label:9}", subsequent_indent=" " * 9)


def _gpu_table(facts: Facts) -> list[str]:
    """Lay out a row per GPU: its number for nvidia-smi, for CUDA alone, and in the lessons."""
    tf = facts.tensorflow
    order = facts.lesson_order
    # TensorFlow numbers GPUs as CUDA does; when the counts differ, whose is whose is not known.
    known = tf is not None and order is not None and len(order) == tf.gpus
    lessons = {bus: f"/GPU:{i}" for i, bus in enumerate(order or ())} if known else {}
    alone = {bus: str(i) for i, bus in enumerate(facts.cuda_order or ())}
    rows = []
    for gpu in facts.driver.gpus:
        bus = gpu.pci_bus_id
        rows.append((
            str(gpu.index),
            alone.get(bus or "", "?" if facts.cuda_order is None or bus is None else "-"),
            lessons.get(bus or "", "-" if bus and (known or (tf and not tf.gpus)) else "?"),
            gpu.name,
            _memory(gpu),
            bus or "?",
        ))  # fmt: skip
    if not rows and tf is not None:  # a driver that cannot be asked, and yet TensorFlow has GPUs
        rows = [("?", "?", f"/GPU:{i}", "?", "?", "?") for i in range(tf.gpus)]
    if not rows:
        return ["none"]
    rows.insert(0, ("nvidia-smi", "CUDA", "lessons", "name", "memory in use", "PCI bus"))
    lines = table(rows)
    if len(rows) > 2:
        mine = os.environ.get("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
        lines.append(f"CUDA: its own order, fastest first; lessons: CUDA_DEVICE_ORDER={mine}")
    return lines


def _memory(gpu: nvml.Gpu) -> str:
    if gpu.memory_used is None or gpu.memory_total is None:
        return "?"
    return f"{gpu.memory_used / 2**30:.1f} of {gpu.memory_total / 2**30:.1f} GiB"
