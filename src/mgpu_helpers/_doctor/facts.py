"""What can be found out about GPUs: from the driver, from CUDA, from the bus, from TensorFlow."""

from __future__ import annotations

import ctypes
import functools
import json
import os
import platform
import subprocess
import sys
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path

from mgpu_helpers import __version__, cluster, nvml

PACKAGES = ("tensorflow", "tensorflow-cpu", "tf-nightly", "keras", "numpy")
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


@dataclass(frozen=True, repr=False)
class Facts:
    """Everything that the diagnosis looks at."""

    system: str  #: as sys.platform has it
    machine: str  #: as platform.machine() has it
    versions: dict[str, str]
    driver: nvml.DriverReport
    on_bus: int  #: NVIDIA GPUs on the PCI bus; 0 also where the bus cannot be read
    visible: str | None  #: CUDA_VISIBLE_DEVICES
    cuda_order: tuple[str, ...] | None  #: bus ids as CUDA numbers them by itself; None: not known
    lesson_order: tuple[str, ...] | None  #: the same as the lessons have it; None: not known
    cuda_error: int | str | None  #: CUDA's answer when it does not start, "library" or "silent"
    cluster: tuple[str, ...] | None  #: what is wrong with TF_CONFIG; None where it is unset
    seen: int | None = None  #: the GPUs that TensorFlow sees; None before it was asked
    cuda: str | None = None  #: what TensorFlow was built with; None in a build for the CPU only
    cudnn: str | None = None
    missing: tuple[str, ...] = ()  #: CUDA libraries that cannot be loaded
    packages: tuple[str, ...] = ()  #: those packages of LIBRARIES that are installed

    @property
    def there(self) -> int:
        """Count the GPUs of the machine, whoever can use them."""
        return len(self.driver.gpus) or self.on_bus


def gather() -> Facts:
    """Find out all about the GPUs of this machine, and what TensorFlow says of them.

    >>> facts = gather()
    >>> facts.seen == len(tf.config.list_physical_devices("GPU"))
    True
    """
    return with_tensorflow(without_tensorflow())


def without_tensorflow() -> Facts:
    """Find out everything that takes no TensorFlow; the fields that need it keep their defaults."""
    os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")  # as devices.setup does
    alone, _ = _cuda(CUDA_DEVICE_ORDER="FASTEST_FIRST", CUDA_VISIBLE_DEVICES=None)
    order, error = _cuda()
    versions = {name: _version(name) for name in PACKAGES}
    return Facts(
        system=sys.platform,
        machine=platform.machine(),
        versions={"mgpu_helpers": __version__} | {name: v for name, v in versions.items() if v},
        driver=nvml.query(),
        on_bus=gpus_on_bus(),
        visible=os.environ.get("CUDA_VISIBLE_DEVICES"),
        cuda_order=alone,
        lesson_order=order,
        cuda_error=error,
        cluster=tuple(cluster.check()) if os.environ.get("TF_CONFIG") else None,
    )


def with_tensorflow(facts: Facts) -> Facts:
    """Add what TensorFlow says, which this imports."""
    import tensorflow as tf

    build, site = tf.sysconfig.get_build_info(), Path(tf.__file__).parent.parent
    try:
        # Not get_device_details: after a GPU that did not start, TensorFlow never answers that.
        seen = len(tf.config.list_physical_devices("GPU"))
    except Exception:  # a driver that breaks in the middle; the plan has said so
        seen = 0
    cuda = build.get("cuda_version") if tf.test.is_built_with_cuda() else None
    if os.environ.get("CUDA_VISIBLE_DEVICES") != facts.visible:
        # In cores mode `setup` has hidden the GPUs: what CUDA shows is what there would be to see.
        seen = len(facts.lesson_order or ()) if cuda and not missing_libraries(site) else 0
    facts = replace(facts, cuda=cuda, cudnn=build.get("cudnn_version"), seen=seen)
    if seen < facts.there and facts.system == "linux" and (cuda or "").startswith("12."):
        installed = tuple(sorted({name for name in LIBRARIES.values() if _version(name)}))
        facts = replace(facts, missing=missing_libraries(site), packages=installed)
    return facts


def gpus_on_bus(bus: Path = Path("/sys/bus/pci/devices")) -> int:
    """Count the NVIDIA GPUs on the PCI bus; 0 where it cannot be read."""
    found = 0
    for device in bus.glob("*"):
        try:
            vendor = (device / "vendor").read_text().strip()
            found += vendor == "0x10de" and (device / "class").read_text().startswith("0x03")
        except OSError:
            continue
    return found


# Asked in a process of its own: CUDA reads its environment once, and TensorFlow is to be the first
# to start it in this one.
_ASK_CUDA = """
import ctypes, json, os
try:
    cuda = ctypes.CDLL("libcuda.so.1")
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


def _cuda(**env: str | None) -> tuple[tuple[str, ...] | None, int | str | None]:
    """Ask CUDA for its GPUs' bus ids in its order; None and the error where it does not start."""
    merged = {name: text for name, text in {**os.environ, **env}.items() if text is not None}
    command = [sys.executable, "-I", "-S", "-c", _ASK_CUDA]
    try:
        done = subprocess.run(command, env=merged, capture_output=True, timeout=60)
        found, error = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.SubprocessError):
        return None, "silent"
    return None if found is None else tuple(map(nvml.bus_id, found)), error


def missing_libraries(site: Path) -> tuple[str, ...]:
    """List the CUDA libraries that neither pip's packages, in `site`, nor the system bring."""
    places = {name: [*map(str, site.glob(f"nvidia/*/lib/{name}")), name] for name in LIBRARIES}
    return tuple(name for name, paths in places.items() if not any(map(_loads, paths)))


def _loads(library: str) -> bool:
    try:
        return bool(ctypes.CDLL(library))
    except OSError:
        return False


@functools.cache
def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
