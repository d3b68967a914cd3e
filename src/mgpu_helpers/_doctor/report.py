"""What the facts about a machine mean, in sentences, and how they are printed."""

from __future__ import annotations

import os
import platform
import sys
import textwrap
import traceback

from mgpu_helpers._doctor.facts import LIBRARIES, Facts
from mgpu_helpers._formatting import counted, error_line, table

INSTALL = 'pip install "mgpu-helpers[gpu]" (in the project: make lab GPU=1)'
CUDA_ERRORS: dict[int | str, str] = {
    "library": "the driver's libcuda.so.1 is not here: in a container set "
    "NVIDIA_DRIVER_CAPABILITIES=compute,utility, else install the driver again",
    "silent": "it does not answer: reboot",
    802: "sudo systemctl start nvidia-fabricmanager",
    803: "reboot, as the driver was updated while the old one is still loaded",
    999: "sudo modprobe nvidia_uvm, or reboot",
}
TAKEN = (
    "mgpu run and mgpu cluster leave these alone. devices.setup takes them: name others in "
    "CUDA_VISIBLE_DEVICES."
)
OPEN = (
    "TF_CONFIG is set. TensorFlow listens on all interfaces of this machine, whatever address it "
    "names, and asks nobody for a password: let only the other workers reach that port."
)


def diagnose(facts: Facts) -> list[str]:
    """Say which GPUs are lost, why TensorFlow does not use one that is there, and what to do.

    Gives a sentence for each cause, and for what is wrong with TF_CONFIG; [] where every GPU that
    works is used.

    >>> from mgpu_helpers._doctor import gather
    >>> causes = diagnose(gather())
    """
    return _gpus(facts) + list(facts.cluster or ())


def _gpus(facts: Facts) -> list[str]:
    driver, there = facts.driver, facts.there
    causes = [gpu.problem for gpu in driver.gpus if gpu.problem]
    if facts.seen is None or facts.seen >= there - len(causes):
        return causes
    if not driver.gpus:
        causes.append(f"{counted(there, 'NVIDIA GPU')} on the PCI bus. {driver.reason}")
    if facts.cuda is None:
        causes.append(_wrong_wheel(facts))
    elif driver.cuda and int(driver.cuda.split(".")[0]) < int(facts.cuda.split(".")[0]):
        causes.append(
            f"The driver {driver.driver} supports CUDA up to {driver.cuda} and TensorFlow was "
            f"built with {facts.cuda}: install a newer driver, for CUDA 12 version 525 or later, "
            "for Hopper and newer GPUs 555."
        )
    if facts.visible is not None and driver.gpus:
        hidden = facts.visible.split(",")[0].strip() in ("", "-1")
        shown = 0 if hidden else there if facts.lesson_order is None else len(facts.lesson_order)
        if shown < there:
            causes.append(
                f'CUDA_VISIBLE_DEVICES="{facts.visible}" leaves {shown} of {counted(there, "GPU")}:'
                " to use them all, unset it before Python or Jupyter starts."
            )
    if facts.missing:
        packages = sorted({LIBRARIES[name] for name in facts.missing})
        broken = set(packages) <= set(facts.packages)
        todo = f"pip install --force-reinstall {' '.join(packages)}" if broken else INSTALL
        more = f" and {len(facts.missing) - 1} more CUDA libraries" if facts.missing[1:] else ""
        causes.append(f"TensorFlow cannot load {facts.missing[0]}{more}: {todo}.")
    if driver.gpus and facts.cuda_error is not None:
        known = "see what nvidia-smi says, and reboot if it says nothing"
        remedy = CUDA_ERRORS.get(facts.cuda_error, known)
        causes.append(f"CUDA does not start (error {facts.cuda_error}): {remedy}.")
    if not causes:
        causes.append(
            f"TensorFlow sees {facts.seen} of {counted(there, 'GPU')} for a reason not known here: "
            "MGPU_VERBOSE=1 python -m mgpu_helpers shows what it says itself."
        )
    return causes


def _wrong_wheel(facts: Facts) -> str:
    if facts.system == "linux" and facts.machine not in ("x86_64", "AMD64"):
        return (
            f"TensorFlow for Linux on {facts.machine} is built for the CPU only: use a build with "
            "CUDA, such as NVIDIA's container or conda-forge's package."
        )
    name = "tensorflow-cpu" if "tensorflow-cpu" in facts.versions else "tensorflow"
    return (
        f"This TensorFlow is built for the CPU only: pip uninstall {name}, then {INSTALL}, or "
        "conda-forge's package for CUDA."
    )


def no_plan(problem: Exception) -> str:
    """Say in one sentence why there is no plan, and what to do."""
    first = error_line(problem).rstrip(".:")
    if isinstance(problem, ModuleNotFoundError) and problem.name == "tensorflow":
        return "TensorFlow is not installed: pip install mgpu-helpers (in the project: make lab)."
    *_, (frame, _) = traceback.walk_tb(problem.__traceback__)
    if frame.f_globals.get("__name__", "").startswith("mgpu_helpers."):
        return f"{first}."  # a sentence of ours, and not an error that came through us
    if isinstance(problem, ImportError) or "tensorflow" not in sys.modules:
        return (
            f"TensorFlow cannot be imported ({first}): pip install --force-reinstall tensorflow "
            "(in the project: remove .venv, then make lab)."
        )
    return (
        f"TensorFlow does not start ({first}): MGPU_MODE=cores runs the lessons without a GPU, "
        "MGPU_VERBOSE=1 python -m mgpu_helpers shows more."
    )


def head(facts: Facts) -> str:
    """Write the versions and the driver: what is known before TensorFlow is imported."""
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
    """Write what TensorFlow is built with, the GPUs in every order, their users, what is wrong."""
    lines = []
    if facts.seen is not None:
        built = f"with CUDA {facts.cuda} and cuDNN {facts.cudnn}"
        built = built if facts.cuda else "for the CPU only, without CUDA"
        lines.append(row("built", f"TensorFlow {built}"))
    lines += [f"{'' if i else 'GPUs':9}{line}" for i, line in enumerate(_gpu_table(facts))]
    others = [f"GPU {gpu.index} ({why})" for gpu in facts.driver.gpus if (why := gpu.others())]
    if others:
        lines.append(row("in use", f"{', '.join(others)}; {TAKEN}"))
    if facts.cluster is not None:
        lines.append(row("cluster", OPEN))
    lines += [row("problem", cause) for cause in diagnose(facts)]
    return "\n".join(lines)


def row(label: str, text: str) -> str:
    """Lay out a label and a text as the plan does, over as many lines as it takes."""
    return textwrap.fill(text, 100, initial_indent=f"{label:9}", subsequent_indent=" " * 9)


def _gpu_table(facts: Facts) -> list[str]:
    """Lay out a row per GPU: its number for nvidia-smi, for CUDA alone, and in the lessons."""
    order, seen = facts.lesson_order, facts.seen
    # TensorFlow numbers GPUs as CUDA does; when the counts differ, whose is whose is not known.
    known = order is not None and len(order) == seen
    lessons = {bus: f"/GPU:{i}" for i, bus in enumerate(order or ())} if known else {}
    alone = {bus: str(i) for i, bus in enumerate(facts.cuda_order or ())}
    rows = []
    for gpu in facts.driver.gpus:
        bus, used, total = gpu.pci_bus_id or "?", gpu.memory_used, gpu.memory_total
        memory = "?"
        if used is not None and total is not None:
            memory = f"{used / 2**30:.1f} of {total / 2**30:.1f} GiB"
        rows.append((
            str(gpu.index),
            alone.get(bus, "?" if facts.cuda_order is None or bus == "?" else "-"),
            lessons.get(bus, "-" if bus != "?" and (known or seen == 0) else "?"),
            gpu.name,
            memory,
            bus,
        ))  # fmt: skip
    if not rows:  # without a driver that can be asked TensorFlow may have GPUs
        rows = [("?", "?", f"/GPU:{i}", "?", "?", "?") for i in range(seen or 0)]
    if not rows:
        return ["none"]
    lines = table([("nvidia-smi", "CUDA", "lessons", "name", "memory in use", "PCI bus"), *rows])
    if len(rows) > 1:
        mine = os.environ.get("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
        lines.append(f"CUDA: its own order, fastest first; lessons: CUDA_DEVICE_ORDER={mine}")
    return lines
