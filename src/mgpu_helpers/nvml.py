"""What NVIDIA's driver says about the GPUs of this machine, as plain records.

The only module that touches pynvml. The command `mgpu` shows what it returns.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LEAST_FREE = 0.1  # of a GPU's memory; with less it counts as used


@dataclass(frozen=True)
class Process:
    """A process that uses a GPU; memory in bytes, None where the driver does not say."""

    pid: int
    memory: int | None
    name: str | None
    uid: int | None = None  #: its user; None where hidden, as in another container
    computes: bool = True  #: False for one that only draws, as a desktop does


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
    parts: tuple[Gpu, ...] = ()  #: its MIG devices

    def others(self, mine: bool = False) -> str:
        """Say who else computes on it, or that under a tenth of its memory is free; "" if neither.

        What draws does not count, or no desktop would have a free GPU. In a container recent
        drivers leave out the processes of others, and in WSL2 all of them: there memory alone
        tells. A process whose user is hidden counts as somebody else's. With `mine`, for a GPU on
        which the caller's own processes run, only what is certainly of another user counts.

        >>> {gpu.index: gpu.others() for gpu in query().gpus}  # doctest: +SKIP
        {0: 'processes of anna', 1: '', 2: '0.3 of 80.0 GiB free'}
        """
        computing = [process for process in self.processes or () if process.computes]
        uids = {process.uid for process in computing if process.uid is not None}
        said = ", ".join(sorted(_user(uid) for uid in uids if uid != os.getuid()))
        why = [f"processes of {said}"] if said else []
        if not mine:
            if any(process.uid is None for process in computing):
                why.append("processes whose user is hidden from here")
            free, total = self.memory_free, self.memory_total
            if free is not None and total and free < LEAST_FREE * total:
                why.append(f"{free / 2**30:.1f} of {total / 2**30:.1f} GiB free")
        return ", ".join(why)


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
        missing = "The package nvidia-ml-py is not installed: pip install nvidia-ml-py."
        return DriverReport((), missing, None, None)
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return DriverReport((), _reason(pynvml, error), None, None)
    try:
        driver = _ask(pynvml.nvmlSystemGetDriverVersion)
        cuda = _ask(pynvml.nvmlSystemGetCudaDriverVersion)
        count = _ask(pynvml.nvmlDeviceGetCount) or 0
        gpus = tuple(_gpu(pynvml, i) for i in range(count))
    finally:
        _ask(pynvml.nvmlShutdown)
    reason = None if gpus else f"NVIDIA's driver {driver or ''} is loaded, but it finds no GPU."
    return DriverReport(gpus, reason, driver, cuda and f"{cuda // 1000}.{cuda % 1000 // 10}")


def bus_id(text: str) -> str:
    """Write a PCI bus id as Linux does; NVML and CUDA differ in digits and case.

    >>> bus_id("00000000:3B:00.0")
    '0000:3b:00.0'
    """
    domain, _, rest = text.partition(":")
    return f"{int(domain, 16):04x}:{rest}".lower()


def _user(uid: int) -> str:
    import pwd  # Windows has none, and there no process has a uid

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:  # not of this container, or of no user here
        return f"user {uid}"


def _gpu(pynvml: Any, index: int) -> Gpu:
    try:
        return _record(pynvml, index, pynvml.nvmlDeviceGetHandleByIndex(index))
    except pynvml.NVMLError as error:
        said, problem = str(error).rstrip("."), None
        if error.value == pynvml.NVML_ERROR_GPU_IS_LOST:
            problem = (
                f"GPU {index} has fallen off the bus: reboot, and when it happens again check its "
                "power, its cooling and its seat."
            )
        elif error.value != pynvml.NVML_ERROR_NO_PERMISSION:  # it is well, and somebody else's
            problem = f'The driver does not answer for GPU {index} ("{said}"): '
            problem += "look at nvidia-smi, or reboot."
        return _record(pynvml, index, None, problem)


def _record(pynvml: Any, index: int, handle: Any, problem: str | None = None) -> Gpu:
    def ask(name: str, *args: Any) -> Any:
        return None if handle is None else _ask(getattr(pynvml, name), handle, *args)

    # The second form of the call leaves out what the driver keeps for itself, as nvidia-smi does.
    memory = ask("nvmlDeviceGetMemoryInfo", pynvml.nvmlMemory_v2)
    pci = ask("nvmlDeviceGetPciInfo")
    load = ask("nvmlDeviceGetUtilizationRates")
    power, limit = ask("nvmlDeviceGetPowerUsage"), ask("nvmlDeviceGetEnforcedPowerLimit")
    mig = ask("nvmlDeviceGetMigMode")  # what it is now, and what it will be after a reset
    most = ask("nvmlDeviceGetMaxMigDeviceCount") if mig and mig[0] else None
    parts = [ask("nvmlDeviceGetMigDeviceHandleByIndex", i) for i in range(most or 0)]
    return Gpu(
        index=index,
        name=ask("nvmlDeviceGetName") or "a GPU that does not say its name",
        uuid=ask("nvmlDeviceGetUUID"),
        pci_bus_id=None if pci is None else bus_id(pci.busId),
        **{f"memory_{name}": getattr(memory, name, None) for name in ("total", "used", "free")},
        utilization=None if load is None else load.gpu,
        temperature=ask("nvmlDeviceGetTemperature", pynvml.NVML_TEMPERATURE_GPU),
        power=None if power is None else power / 1000,
        power_limit=None if limit is None else limit / 1000,
        processes=_processes(pynvml, ask),
        problem=problem,
        parts=tuple(_record(pynvml, index, part) for part in parts if part is not None),
    )


def _processes(pynvml: Any, ask: Callable[..., Any]) -> tuple[Process, ...] | None:
    computing = ask("nvmlDeviceGetComputeRunningProcesses")
    drawing = ask("nvmlDeviceGetGraphicsRunningProcesses")
    if computing is None and drawing is None:
        return None
    computes = {process.pid for process in computing or ()}
    listed = {process.pid: process for process in [*(computing or ()), *(drawing or ())]}
    return tuple(
        Process(
            pid, process.usedGpuMemory, _ask(pynvml.nvmlSystemGetProcessName, pid), _uid(pid),
            pid in computes,
        )  # fmt: skip
        for pid, process in sorted(listed.items())
    )


def _uid(pid: int) -> int | None:
    try:
        return os.stat(f"/proc/{pid}").st_uid
    except OSError:  # it runs outside of this container, or is hidden from this user
        return None


def _ask(call: Callable[..., Any], *args: Any) -> Any:
    """Call the driver; None when it does not answer: one missing answer must not cost the rest."""
    import pynvml

    # A driver older than pynvml has an error of its own, and names are read as UTF-8.
    older = getattr(pynvml, "NVMLLibraryMismatchError", pynvml.NVMLError)
    try:
        return call(*args)
    except (pynvml.NVMLError, older, UnicodeDecodeError):
        return None


def _reason(pynvml: Any, error: Any) -> str:
    """Turn what nvmlInit said into a sentence with the remedy."""
    code = error.value
    if code == pynvml.NVML_ERROR_LIBRARY_NOT_FOUND and Path("/proc/driver/nvidia").exists():
        return (
            "NVIDIA's driver is loaded, but its library libnvidia-ml.so.1 is not here: start the "
            "container with --gpus all, or install the driver's libraries."
        )
    other = f'NVIDIA\'s driver does not start ("{error}"): run nvidia-smi to see more.'
    return {
        pynvml.NVML_ERROR_LIBRARY_NOT_FOUND:
            "No NVIDIA driver is installed: if this machine has an NVIDIA GPU, install it.",
        pynvml.NVML_ERROR_DRIVER_NOT_LOADED:
            "NVIDIA's driver is installed but not loaded: sudo modprobe nvidia, or reboot.",
        pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH:
            "NVIDIA's driver was updated while the old one is still loaded: reboot.",
        pynvml.NVML_ERROR_NO_PERMISSION:
            "NVIDIA's driver refuses this user: allow reading and writing /dev/nvidia*, often by "
            "adding the user to the group video.",
        pynvml.NVML_ERROR_FUNCTION_NOT_FOUND:
            "NVIDIA's driver is too old to be asked: install version 525 or newer.",
    }.get(code, other)  # fmt: skip
