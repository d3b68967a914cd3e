"""What this machine is, and why TensorFlow leaves a GPU unused: `python -m mgpu_helpers`."""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import platform
import subprocess
import sys
import textwrap
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any

from mgpu_helpers import __version__, nvml
from mgpu_helpers.wording import counted

INSTALL = 'pip install "mgpu-helpers[gpu]" (in the project: make lab GPU=1)'

# What TensorFlow loads before it counts a GPU, and the package that brings it. The names hold for
# TensorFlow built with CUDA 12 and cuDNN 9, which 2.18 to 2.21 are.
LIBRARIES = {
    "libcudart.so.12": "nvidia-cuda-runtime-cu12",
    "libcublas.so.12": "nvidia-cublas-cu12",
    "libcublasLt.so.12": "nvidia-cublas-cu12",
    "libcudnn.so.9": "nvidia-cudnn-cu12",
    "libcufft.so.11": "nvidia-cufft-cu12",
    "libcusolver.so.11": "nvidia-cusolver-cu12",
    "libcusparse.so.12": "nvidia-cusparse-cu12",
}


@dataclass(frozen=True)
class TensorFlow:
    """What TensorFlow says of itself; cuda and cudnn are None in a build for the CPU only."""

    cuda: str | None
    cudnn: str | None
    gpus: int  # how many it sees


@dataclass(frozen=True)
class Facts:
    """Everything that the diagnosis looks at."""

    system: str  # as sys.platform has it
    machine: str  # as platform.machine() has it
    versions: dict[str, str]
    driver: nvml.Report
    cards: int  # NVIDIA display cards on the PCI bus; 0 also where the bus cannot be read
    visible: str | None  # CUDA_VISIBLE_DEVICES
    cuda_order: tuple[str, ...] | None  # bus ids as CUDA numbers them by itself; None: not known
    lesson_order: tuple[str, ...] | None  # the same as the lessons have it; None: not known
    cuda_error: int | str | None  # CUDA's answer when it does not start, "library" or "silent"
    tensorflow: TensorFlow | None = None
    missing: tuple[str, ...] = ()  # CUDA libraries that cannot be loaded
    packages: tuple[str, ...] = ()  # those packages of LIBRARIES that are installed

    @property
    def there(self) -> int:
        """Count the GPUs of the machine, whoever can use them."""
        return len(self.driver.gpus) or self.cards

    @property
    def seen(self) -> int:
        """Count the GPUs that TensorFlow sees."""
        return self.tensorflow.gpus if self.tensorflow else 0


def gather() -> Facts:
    """Find out everything that takes no TensorFlow."""
    os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")  # as devices.setup does
    alone, _ = _cuda(CUDA_DEVICE_ORDER="FASTEST_FIRST", CUDA_VISIBLE_DEVICES=None)
    order, error = _cuda()
    return Facts(
        system=sys.platform,
        machine=platform.machine(),
        versions=_versions(),
        driver=nvml.query(),
        cards=cards(),
        visible=os.environ.get("CUDA_VISIBLE_DEVICES"),
        cuda_order=alone,
        lesson_order=order,
        cuda_error=error,
    )


def with_tensorflow(facts: Facts) -> Facts:
    """Add what TensorFlow says; it is imported by now."""
    import tensorflow as tf

    build = tf.sysconfig.get_build_info()
    try:
        # Not get_device_details: after a GPU that did not start, TensorFlow never answers that.
        gpus = len(tf.config.list_physical_devices("GPU"))
    except Exception:  # a driver that breaks in the middle; the plan has said so
        gpus = 0
    cuda = build.get("cuda_version") if tf.test.is_built_with_cuda() else None
    facts = replace(facts, tensorflow=TensorFlow(cuda, build.get("cudnn_version"), gpus))
    if facts.seen < facts.there and facts.system == "linux" and (cuda or "").startswith("12."):
        installed = tuple(sorted({name for name in LIBRARIES.values() if _version(name)}))
        facts = replace(facts, missing=_missing(), packages=installed)
    return facts


def diagnose(facts: Facts) -> list[str]:
    """Say which GPUs are lost, why TensorFlow does not use one that is there, and what to do."""
    tf, driver, there = facts.tensorflow, facts.driver, facts.there
    causes = [gpu.problem for gpu in driver.gpus if gpu.problem]
    if tf is None or facts.seen >= there - len(causes):
        return causes
    which = {1: "the GPU"}.get(there, f"all {there} GPUs")
    if not driver.gpus:
        causes.append(f"{counted(there, 'NVIDIA card')} on the PCI bus. {driver.reason}")
    if tf.cuda is None:
        causes.append(_wrong_wheel(facts))
    elif driver.cuda and _major(driver.cuda) < _major(tf.cuda):
        causes.append(
            f"The driver {driver.driver} supports CUDA up to {driver.cuda} and TensorFlow was "
            f"built with {tf.cuda}: install a newer driver, for CUDA 12 version 525 or later."
        )
    if facts.visible is not None and driver.gpus:
        left = facts.lesson_order
        shown = len(left) if left is not None else 0 if _hides_all(facts.visible) else there
        if shown < there:
            does = f"hides {which}" if not shown else f"leaves {shown} of {there} GPUs"
            causes.append(
                f'CUDA_VISIBLE_DEVICES="{facts.visible}" {does}: to use them all, unset it before '
                "Python or Jupyter starts."
            )
    if facts.missing:
        packages = sorted({LIBRARIES[name] for name in facts.missing})
        if set(packages) <= set(facts.packages):
            todo = f"pip install --force-reinstall {' '.join(packages)}"
        else:
            todo = INSTALL
        names = " and ".join(facts.missing)
        if len(facts.missing) > 2:
            names = f"{facts.missing[0]} and {len(facts.missing) - 1} more CUDA libraries"
        causes.append(f"TensorFlow cannot load {names}: {todo}.")
    if driver.gpus and facts.cuda_error is not None:
        causes.append(_cuda_does_not_start(facts.cuda_error))
    if not causes:
        causes.append(
            f"TensorFlow sees {facts.seen} of {counted(there, 'GPU')} for a reason not known here: "
            "MGPU_VERBOSE=1 python -m mgpu_helpers shows what it says itself."
        )
    return causes


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
    """Write what TensorFlow was built with, the GPUs in every order, and what is wrong."""
    lines = []
    if facts.tensorflow is not None:
        cuda, cudnn = facts.tensorflow.cuda, facts.tensorflow.cudnn
        built = f"with CUDA {cuda} and cuDNN {cudnn}" if cuda else "for the CPU only, without CUDA"
        lines.append(row("built", f"TensorFlow {built}"))
    table = _gpu_table(facts)
    lines += [f"{'' if i else 'GPUs':9}{line}" for i, line in enumerate(table)]
    lines += [row("problem", cause) for cause in diagnose(facts)]
    return "\n".join(lines)


def explain(problem: Exception) -> str:
    """Say in one sentence why there is no plan, and what to do."""
    first = next(iter(str(problem).strip().splitlines()), type(problem).__name__).rstrip(".:")
    if isinstance(problem, ModuleNotFoundError) and problem.name == "tensorflow":
        return "TensorFlow is not installed: pip install mgpu-helpers (in the project: make lab)."
    if _ours(problem):
        return f"{first}."
    if isinstance(problem, ImportError) or "tensorflow" not in sys.modules:
        return (
            f"TensorFlow cannot be imported ({first}): pip install --force-reinstall tensorflow "
            "(in the project: remove .venv, then make lab)."
        )
    return (
        f"TensorFlow does not start ({first}): MGPU_MODE=cores runs the lessons without a GPU, "
        "MGPU_VERBOSE=1 python -m mgpu_helpers shows more."
    )


def _ours(problem: Exception) -> bool:
    """Tell an error that this package raised, a sentence, from one that came through it."""
    trace = problem.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    name = trace.tb_frame.f_globals.get("__name__", "") if trace else ""
    return name.startswith("mgpu_helpers.")


def row(label: str, text: str) -> str:
    """Lay out a label and a text as the plan does, over as many lines as it takes."""
    return textwrap.fill(text, 100, initial_indent=f"{label:9}", subsequent_indent=" " * 9)


def cards(bus: Path = Path("/sys/bus/pci/devices")) -> int:
    """Count the NVIDIA display cards on the PCI bus; 0 where it cannot be read."""
    found = 0
    for device in bus.glob("*"):
        try:
            vendor = (device / "vendor").read_text().strip()
            found += vendor == "0x10de" and (device / "class").read_text().startswith("0x03")
        except OSError:
            continue
    return found


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
            alone.get(bus, "?" if facts.cuda_order is None or bus is None else "-"),
            lessons.get(bus, "-" if bus and (known or (tf and not tf.gpus)) else "?"),
            gpu.name,
            _memory(gpu),
            bus or "?",
        ))  # fmt: skip
    if not rows and tf is not None:  # a driver that cannot be asked, and yet TensorFlow has GPUs
        rows = [("?", "?", f"/GPU:{i}", "?", "?", "?") for i in range(tf.gpus)]
    if not rows:
        return ["none"]
    rows.insert(0, ("nvidia-smi", "CUDA", "lessons", "name", "memory in use", "PCI bus"))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    if len(rows) > 2:
        mine = os.environ.get("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
        lines.append(f"CUDA: its own order, fastest first; lessons: CUDA_DEVICE_ORDER={mine}")
    return lines


def _memory(gpu: nvml.Gpu) -> str:
    if gpu.memory_used is None or gpu.memory_total is None:
        return "?"
    return f"{gpu.memory_used / 2**30:.1f} of {gpu.memory_total / 2**30:.1f} GiB"


def _wrong_wheel(facts: Facts) -> str:
    if facts.system == "win32":
        return "TensorFlow for Windows is built for the CPU only: use WSL2, and make lab in it."
    if facts.system == "linux" and facts.machine not in ("x86_64", "AMD64"):
        return (
            f"TensorFlow for Linux on {facts.machine} is built for the CPU only: use a build with "
            "CUDA, such as NVIDIA's container or conda-forge's package."
        )
    if "tensorflow-cpu" in facts.versions:
        return f"tensorflow-cpu has no CUDA: pip uninstall tensorflow-cpu, then {INSTALL}."
    return (
        f"This TensorFlow is built for the CPU only: pip uninstall tensorflow, then {INSTALL}, "
        "or conda-forge's package for CUDA."
    )


def _cuda_does_not_start(error: int | str) -> str:
    if error == "library":
        return (
            "The driver's library libcuda.so.1 is not here: in a container set "
            "NVIDIA_DRIVER_CAPABILITIES=compute,utility, else install the driver again."
        )
    if error == "silent":
        return "CUDA does not answer when it is started: reboot."
    remedies: dict[int | str, str] = {
        802: "sudo systemctl start nvidia-fabricmanager",
        803: "reboot, as the driver was updated while the old one is still loaded",
        999: "sudo modprobe nvidia_uvm, or reboot",
    }
    remedy = remedies.get(error, "see what nvidia-smi says, and reboot if it says nothing")
    return f"CUDA does not start (error {error}): {remedy}."


def _hides_all(visible: str) -> bool:
    return visible.split(",")[0].strip() in ("", "-1")


# Asked in a process of its own: CUDA reads its environment once, and TensorFlow is to be the first
# to start it in this one.
_ASK_CUDA = """
import ctypes, json, os, sys
try:
    cuda = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
except OSError:
    print(json.dumps([None, "library"])); raise SystemExit
error = cuda.cuInit(0)
if error:
    hidden = error == 100 and "CUDA_VISIBLE_DEVICES" in os.environ
    print(json.dumps([[], None] if hidden else [None, error])); raise SystemExit
count, device, text = ctypes.c_int(), ctypes.c_int(), ctypes.create_string_buffer(64)
found = []
cuda.cuDeviceGetCount(ctypes.byref(count))
for i in range(count.value):
    cuda.cuDeviceGet(ctypes.byref(device), i)
    cuda.cuDeviceGetPCIBusId(text, 64, device)
    found.append(text.value.decode())
print(json.dumps([found, None]))
"""

_LOAD = """
import ctypes, json, sys
missing = []
for name, *places in json.loads(sys.argv[1]):
    for place in (*places, name):
        try:
            ctypes.CDLL(place); break
        except OSError:
            pass
    else:
        missing.append(name)
print(json.dumps(missing))
"""


def _cuda(**env: str | None) -> tuple[tuple[str, ...] | None, int | str | None]:
    """Ask CUDA for its GPUs' bus ids in its order; None and the error where it does not start."""
    answer = _child(_ASK_CUDA, **env)
    if answer is None:
        return None, "silent"
    found, error = answer
    return None if found is None else tuple(map(nvml.bus_id, found)), error


def _missing() -> tuple[str, ...]:
    """List the CUDA libraries that neither pip's packages nor the system bring."""
    spec = importlib.util.find_spec("tensorflow")
    site = Path(spec.origin).parent.parent if spec and spec.origin else Path()
    places = [[name, *map(str, site.glob(f"nvidia/*/lib/{name}"))] for name in LIBRARIES]
    return tuple(_child(_LOAD, json.dumps(places)) or ())


def _child(code: str, *args: str, **env: str | None) -> Any:
    """Run code in a Python of its own and read its JSON; None when it fails or takes a minute."""
    merged: dict[str, str | None] = {**os.environ, **env}
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", code, *args],
            env={name: value for name, value in merged.items() if value is not None},
            capture_output=True,
            timeout=60,
        )
        return json.loads(done.stdout)
    except (OSError, ValueError, subprocess.SubprocessError):
        return None


def _versions() -> dict[str, str]:
    found = {"mgpu_helpers": __version__}
    for name in ("tensorflow", "tensorflow-cpu", "tf-nightly", "keras", "numpy"):
        if version := _version(name):
            found[name] = version
    return found


@functools.cache
def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _major(version: str) -> int:
    return int(version.split(".")[0])
