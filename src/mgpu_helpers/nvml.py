"""What NVIDIA's driver says about the GPUs of this machine, as plain records.

The only module that touches pynvml. Lesson 00 shows what it returns.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Process:
    """A process that uses a GPU; memory in bytes, None where the driver does not say."""

    pid: int
    memory: int | None
    name: str | None


@dataclass(frozen=True)
class Gpu:
    """A GPU as the driver reports it; None for whatever it does not report."""

    index: int  #: nvidia-smi's number: the order of the PCI bus
    name: str
    uuid: str | None
    pci_bus_id: str | None  #: as Linux writes it: 0000:3b:00.0
    memory_total: int | None  #: bytes
    memory_used: int | None
    memory_free: int | None
    utilization: int | None  #: percent
    temperature: int | None  #: degrees Celsius
    power: float | None  #: watts
    power_limit: float | None
    processes: tuple[Process, ...] | None
    problem: str | None = None  #: a sentence, where the driver has lost the GPU


@dataclass(frozen=True)
class DriverReport:
    """The GPUs in nvidia-smi's order, or the reason why there are none."""

    gpus: tuple[Gpu, ...]
    reason: str | None
    driver: str | None  #: the driver's version
    cuda: str | None  #: the newest CUDA that the driver supports: "12.8"


def query() -> DriverReport:
    """Ask the driver for every GPU; an empty list and the reason where there is no driver.

    >>> report = query()
    >>> bool(report.gpus) == (report.reason is None)
    True
    """
    try:
        import pynvml
    except ImportError:
        return _none("The package nvidia-ml-py is not installed: pip install nvidia-ml-py.")
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return _none(_reason(pynvml, error))
    try:
        driver = _text(_ask(pynvml.nvmlSystemGetDriverVersion))
        cuda = _ask(pynvml.nvmlSystemGetCudaDriverVersion)
        cuda = cuda and f"{cuda // 1000}.{cuda % 1000 // 10}"
        count = _ask(pynvml.nvmlDeviceGetCount) or 0
        gpus = tuple(_gpu(pynvml, i) for i in range(count))
    finally:
        _ask(pynvml.nvmlShutdown)
    reason = None if gpus else f"NVIDIA's driver {driver or ''} is loaded, but it finds no GPU."
    return DriverReport(gpus, reason, driver, cuda)


def bus_id(text: str) -> str:
    """Write a PCI bus id as Linux does; NVML and CUDA differ in digits and case.

    >>> bus_id("00000000:3B:00.0")
    '0000:3b:00.0'
    """
    domain, _, rest = text.partition(":")
    return f"{int(domain, 16):04x}:{rest}".lower()


def _gpu(pynvml: Any, index: int) -> Gpu:
    handle, problem = None, None
    try:
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    except pynvml.NVMLError as error:
        if error.value != pynvml.NVML_ERROR_NO_PERMISSION:  # that one is well, and somebody else's
            problem = _lost(pynvml, index, error)

    def ask(name: str, *args: Any) -> Any:
        call = getattr(pynvml, name, None)  # older pynvml lack some
        return None if handle is None or call is None else _ask(call, handle, *args)

    # The second form of the memory call leaves out what the driver keeps for itself, as nvidia-smi
    # does; drivers before 510 have only the first.
    version = getattr(pynvml, "nvmlMemory_v2", None)
    memory = (version and ask("nvmlDeviceGetMemoryInfo", version)) or ask("nvmlDeviceGetMemoryInfo")
    pci = ask("nvmlDeviceGetPciInfo")
    load = ask("nvmlDeviceGetUtilizationRates")
    power, limit = ask("nvmlDeviceGetPowerUsage"), ask("nvmlDeviceGetEnforcedPowerLimit")
    return Gpu(
        index=index,
        name=_text(ask("nvmlDeviceGetName")) or "a GPU that does not say its name",
        uuid=_text(ask("nvmlDeviceGetUUID")),
        pci_bus_id=None if pci is None else bus_id(_text(pci.busId) or ""),
        memory_total=None if memory is None else memory.total,
        memory_used=None if memory is None else memory.used,
        memory_free=None if memory is None else memory.free,
        utilization=None if load is None else load.gpu,
        temperature=ask("nvmlDeviceGetTemperature", pynvml.NVML_TEMPERATURE_GPU),
        power=None if power is None else power / 1000,
        power_limit=None if limit is None else limit / 1000,
        processes=_processes(pynvml, ask),
        problem=problem,
    )


def _processes(pynvml: Any, ask: Callable[..., Any]) -> tuple[Process, ...] | None:
    found: dict[int, int | None] = {}
    answered = False
    for kind in ("Compute", "Graphics"):
        name = f"nvmlDeviceGet{kind}RunningProcesses"
        listed = ask(name)
        if listed is None:  # drivers before 510 have only the second form of the call
            listed = ask(f"{name}_v2")
        answered = answered or listed is not None
        for process in listed or ():
            found[process.pid] = process.usedGpuMemory
    if not answered:
        return None
    return tuple(
        Process(pid, memory, _text(_ask(pynvml.nvmlSystemGetProcessName, pid)))
        for pid, memory in sorted(found.items())
    )


def _ask(call: Callable[..., Any], *args: Any) -> Any:
    """Call the driver; None when it does not answer: one missing answer must not cost the rest."""
    import pynvml

    # A driver older than pynvml has an error of its own, and names are read as UTF-8.
    older = getattr(pynvml, "NVMLLibraryMismatchError", pynvml.NVMLError)
    try:
        return call(*args)
    except (pynvml.NVMLError, older, UnicodeDecodeError):
        return None


def _text(value: bytes | str | None) -> str | None:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _none(reason: str) -> DriverReport:
    return DriverReport((), reason, None, None)


def _lost(pynvml: Any, index: int, error: Any) -> str:
    """Turn what the driver said instead of giving a GPU into a sentence with the remedy."""
    if error.value == pynvml.NVML_ERROR_GPU_IS_LOST:
        return (
            f"GPU {index} has fallen off the bus: reboot, and when it happens again check its "
            "power, its cooling and its seat."
        )
    said = str(error).rstrip(".")
    return f'The driver does not answer for GPU {index} ("{said}"): look at nvidia-smi, or reboot.'


def _reason(pynvml: Any, error: Any) -> str:
    """Turn what nvmlInit said into a sentence with the remedy."""
    if error.value == pynvml.NVML_ERROR_LIBRARY_NOT_FOUND:
        if sys.platform == "darwin":
            return "There is no NVIDIA driver for macOS: the lessons run on the CPU's cores."
        if Path("/proc/driver/nvidia").exists():
            return (
                "NVIDIA's driver is loaded, but its library libnvidia-ml.so.1 is not here: start "
                "the container with --gpus all, or install the driver's libraries."
            )
        return "No NVIDIA driver is installed: if this machine has an NVIDIA GPU, install it."
    remedies = {
        pynvml.NVML_ERROR_DRIVER_NOT_LOADED: (
            "NVIDIA's driver is installed but not loaded: sudo modprobe nvidia, or reboot."
        ),
        pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: (
            "NVIDIA's driver was updated while the old one is still loaded: reboot."
        ),
        pynvml.NVML_ERROR_NO_PERMISSION: (
            "NVIDIA's driver refuses this user: allow reading and writing /dev/nvidia*, often by "
            "adding the user to the group video."
        ),
        pynvml.NVML_ERROR_FUNCTION_NOT_FOUND: (
            "NVIDIA's driver is too old to be asked: install version 525 or newer."
        ),
        pynvml.NVML_ERROR_INSUFFICIENT_POWER: (
            "A GPU gets too little power: check its power cables."
        ),
        pynvml.NVML_ERROR_GPU_IS_LOST: "A GPU has fallen off the bus: reboot.",
    }
    said = str(error).rstrip(".")
    return remedies.get(
        error.value, f'NVIDIA\'s driver does not start ("{said}"): run nvidia-smi to see more.'
    )
