"""One plan for 0, 1 or N GPUs: a host and n devices, configured before TensorFlow starts.

Lesson 00 builds it in front of the reader.
"""

from __future__ import annotations

import contextlib
import functools
import operator
import os
import platform
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mgpu_helpers import nvml, quiet, trial, visible
from mgpu_helpers.trial import explain as explain  # for people: devices.explain(error)
from mgpu_helpers.wording import counted

MODES = ("gpus", "split-gpu", "cores")
MOST = 64  # more logical devices than any one machine has GPUs
MEBIBYTE = 2**20
AMPERE = (8, 0)  # the compute capability from which on GPUs have TF32

_plan: Plan | None = None


@dataclass(frozen=True, repr=False)
class Plan:
    """A host and n devices, as names for `tf.device`, and what stands behind them."""

    mode: str
    host: str
    devices: tuple[str, ...]
    real: tuple[str, ...]
    cores: int
    machine: str
    note: str  # what the machine has that the plan does not use, or why there is no GPU
    float32: str = ""  # how exact float32 is; "" where there is nothing to say

    def __len__(self) -> int:
        return len(self.devices)

    @property
    def timing(self) -> str:
        """Say in one sentence what a timing means on these devices."""
        n = len(self)
        if self.mode == "gpus":
            return f"{counted(n, 'device')}, each a GPU: a speed-up measured here is real"
        if self.mode == "split-gpu":
            return "the devices share a GPU: placement and results are real, a speed-up is not"
        if n == 1:
            return "one device on one core: there is nothing to speed up, add a device to compare"
        if n <= self.cores:
            return (
                f"{n} devices on {self.cores} cores: a speed-up measured here is real parallel "
                f"work, at most {n} times"
            )
        return (
            f"{n} devices on {counted(self.cores, 'core')}: results are real, a timing beyond "
            f"{counted(self.cores, 'device')} shows nothing"
        )

    @property
    def corner(self) -> str:
        """Name the mode and the machine in a few words, for the corner of a chart."""
        return f"{self.mode} mode · {counted(len(self), 'device')} · {self.machine}"

    def __repr__(self) -> str:
        means = {
            "gpus": "every device is a GPU of its own",
            "split-gpu": "every device is a share of a GPU",
            "cores": "every device stands for one core of the CPU",
        }[self.mode]
        lines = [f"mode     {self.mode}: {means}", f"host     {self.host}  the CPU"]
        for i, (name, real) in enumerate(zip(self.devices, self.real, strict=True)):
            lines.append(f"{'' if i else 'devices':9}{name}  {real}")
        lines.append(f"machine  {self.machine}; {self.note}")
        lines.append(f"timing   {self.timing}")
        if self.float32:
            lines.append(f"float32  {self.float32}")
        return "\n".join(lines)

    def session_config(
        self,
        *,
        devices: int | None = None,
        log_placement: bool = False,
        soft_placement: bool = False,
    ) -> Any:
        """Build the `ConfigProto` that gives a classic Session the same devices as this plan.

        A Session that is given a config of its own forgets what `tf.config` was told; so this one
        starts from it. `devices` is how many of them work at once (all, when None): in cores mode
        the Session gets that many threads of its own. How GPUs share out their memory is the plan's
        for the life of the process: no Session can change it.
        """
        from tensorflow.compat.v1 import ConfigProto
        from tensorflow.python.eager import context

        used = len(self) if devices is None else _whole(devices, "devices")
        if not 1 <= used <= len(self):
            raise ValueError(
                f"devices={devices}, but this plan has {counted(len(self), 'device')}: "
                f"use 1 to {len(self)}, or restart the kernel and call devices.setup({used})."
            )
        config = ConfigProto()
        config.CopyFrom(context.context().config)
        config.log_device_placement = log_placement
        config.allow_soft_placement = soft_placement
        if self.mode == "cores":
            config.intra_op_parallelism_threads = 1
            # Without a name the threads are the Session's own; a named pool would be shared, and
            # Sessions that work at the same time would wait for each other.
            config.session_inter_op_thread_pool.add(num_threads=used)
        return config


def setup(n: int = 2) -> Plan:
    """Configure TensorFlow for a host and n devices, and return the plan.

    Call it before anything else touches TensorFlow. MGPU_DEVICES overrides n; MGPU_MODE (gpus,
    split-gpu or cores) overrides the mode, which otherwise follows from the GPUs that are there.
    Each device runs a small operation before the plan is returned, so that one which cannot is
    said here. TF32 is switched off: `tf32` says what that is.
    """
    global _plan
    wanted = os.environ.get("MGPU_DEVICES")
    n = _whole(wanted, "MGPU_DEVICES") if wanted else _whole(n, "n")
    if not 1 <= n <= MOST:
        raise ValueError(f"{n} devices cannot be planned: ask for 1 to {MOST}.")
    if _plan is not None:
        if len(_plan) == n:
            return _plan
        raise RuntimeError(
            f"TensorFlow has started with {counted(len(_plan), 'device')} and cannot change "
            f"to {n}: restart the kernel and call devices.setup({n}) first."
        )
    # CUDA's own order is fastest first; nvidia-smi's is by bus. One order everywhere is worth more.
    os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    if os.environ.get("MGPU_MODE") != "cores":
        visible.check(nvml.query())
    quiet.start()
    import tensorflow as tf
    from tensorflow.python.eager import context

    if context.context()._initialized:
        raise RuntimeError(
            "TensorFlow has started before devices.setup was called, and its devices cannot change "
            f"any more: restart the kernel and call devices.setup({n}) in the first cell."
        )
    gpus = tf.config.list_physical_devices("GPU")
    mode = _mode(n, len(gpus))
    about: dict[str, trial.Details] = {}
    if mode == "cores":
        names, real = _use_cores(tf, n)
    else:
        use = _use_gpus if mode == "gpus" else _split_gpus
        with quiet.kept_back():
            details = [tf.config.experimental.get_device_details(gpu) for gpu in gpus[:n]]
        names, real, about = use(tf, gpus[:n], details, n)
        trial.announce(details)
    tf.config.experimental.enable_tensor_float_32_execution(False)
    with quiet.kept_back():
        _verify(tf, ["/CPU:0", *names])
        trial.run(names, about)
    quiet.first_session()
    _plan = Plan(
        mode, "/CPU:0", names, real, *_describe(mode, len(gpus)), float32=_float32(about.values())
    )
    return _plan


@contextlib.contextmanager
def tf32() -> Iterator[None]:
    """Let GPUs compute float32 products and convolutions in TF32 within the block, as is usual.

    TF32 rounds what is multiplied to 10 bits: much faster on GPUs from Ampere on (compute
    capability 8.0), and about 1e-3 off. It is TensorFlow's default, and `setup` switches it off, so
    that devices can be proven equal. On other GPUs, and on cores, the block changes nothing.

    The switch holds for the whole process, other threads too, and products ask for it each time
    they run, in graphs that are built already as well. Convolutions may not: TensorFlow tries
    cuDNN's algorithms when it first meets a shape on a GPU and keeps the fastest, so that a shape
    may stay exact in the block, or stay in TF32 after it. Time convolutions in a process that does
    nothing else. The choice can also differ from GPU to GPU and from run to run, by rounding (1e-6)
    only while TF32 is off; `tf.config.experimental.enable_op_determinism()` makes it the same.

        with devices.tf32():
            timing.measure(step)
    """
    from tensorflow import config

    before = config.experimental.tensor_float_32_execution_enabled()
    config.experimental.enable_tensor_float_32_execution(True)
    try:
        yield
    finally:
        config.experimental.enable_tensor_float_32_execution(before)


def short(name: str) -> str:
    """Shorten a device name to the form of the plan: "/CPU:1"; "" when it names no device.

    >>> short("/job:localhost/replica:0/task:0/device:CPU:1")
    '/CPU:1'
    """
    found = re.search(r"(?:^|[/:])(?!(?:job|replica|task|stream):)([A-Za-z_]+):(\d+)$", name)
    return f"/{found[1].upper()}:{found[2]}" if found else ""


def order(name: str) -> tuple[str, int]:
    """Sort device names as people count: "/CPU:2" before "/CPU:10"."""
    kind, _, index = name.rpartition(":")
    return kind, int(index or 0)


def placed(device: str | None) -> contextlib.AbstractContextManager[Any]:
    """Place on a device; None leaves it to the surrounding one, which `tf.device(None)` does not.

    >>> with placed("/CPU:0"):
    ...     x = tf.ones([2])
    """
    import tensorflow as tf

    return contextlib.nullcontext() if device is None else tf.device(device)


def current() -> Plan | None:
    """Return the plan that `setup` made in this process; None before it."""
    return _plan


def freest(n: int = 1, *, busy_below: float = 10, among: Iterable[int] | None = None) -> list[int]:
    """Pick n GPUs, the freest first, as nvidia-smi numbers them; `among` these, or all when None.

    First come those without a process of another user, then those that the driver reports less
    than `busy_below` percent busy, then those with the most free memory. What the driver does not
    report counts as taken.

    It only looks: between this call and the start of TensorFlow another script may pick the same
    GPUs. `jobs.run` holds a lock on what it gives out. To use the numbers, set
    CUDA_DEVICE_ORDER=PCI_BUS_ID and CUDA_VISIBLE_DEVICES before TensorFlow starts.
    """
    n = _whole(n, "n")
    if visible.mig():
        raise RuntimeError(
            "CUDA_VISIBLE_DEVICES names MIG devices, of which the driver tells neither load nor "
            "processes: leave one of them in it, or let jobs.run share them out."
        )
    report = nvml.query()
    gpus = {gpu.index: gpu for gpu in report.gpus if not gpu.problem}
    if not gpus:
        reason = next((gpu.problem for gpu in report.gpus), report.reason)
        raise RuntimeError(
            f"There is no GPU to choose ({reason}): call devices.setup({n}), "
            "which then uses the CPU's cores, and those are all alike."
        )
    named = list(gpus) if among is None else sorted(set(among))
    unknown = [index for index in named if index not in gpus]
    if unknown:
        raise ValueError(
            f"among names GPU {unknown[0]}, but nvidia-smi's numbers here are "
            f"{', '.join(map(str, gpus))}: use these."
        )
    if not 1 <= n <= len(named):
        raise ValueError(
            f"n={n}, but there {'is' if len(named) == 1 else 'are'} {counted(len(named), 'GPU')} "
            "to choose from: " + (f"ask for 1 to {len(named)}." if named else "name more in among.")
        )

    def rank(index: int) -> tuple[float, ...]:
        gpu = gpus[index]
        load = 100 if gpu.utilization is None else gpu.utilization
        return _others(gpu), load >= busy_below, -(gpu.memory_free or 0), load, index

    return sorted(named, key=rank)[:n]


def _others(gpu: nvml.Gpu) -> int:
    """Say whether another user's process is on a GPU: 0 no, 1 not known, 2 yes."""
    if gpu.processes is None:
        return 1
    return 0 if all(_own(process.pid) for process in gpu.processes) else 2


def _own(pid: int) -> bool:
    try:
        return os.stat(f"/proc/{pid}").st_uid == os.getuid()
    except OSError:
        return False  # it runs outside this container, or is hidden from this user


def _whole(value: Any, what: str) -> int:
    try:
        if isinstance(value, bool):
            raise TypeError
        return int(value) if isinstance(value, str) else operator.index(value)
    except (TypeError, ValueError):
        raise ValueError(f"{what}={value!r} is not a number of devices: use 1 to {MOST}.") from None


def _mode(n: int, gpus: int) -> str:
    fits = "cores" if gpus == 0 else "gpus" if gpus >= n else "split-gpu"
    mode = os.environ.get("MGPU_MODE") or fits
    if mode not in MODES:
        raise ValueError(f"MGPU_MODE={mode!r} is not a mode: use {', '.join(MODES)}.")
    if mode == "gpus" and gpus < n or mode == "split-gpu" and gpus == 0:
        raise RuntimeError(
            f"MGPU_MODE={mode} with {counted(n, 'device')}, but TensorFlow sees "
            f"{counted(gpus, 'GPU')}: unset MGPU_MODE to get {fits} mode, or ask "
            "`python -m mgpu_helpers` what is missing."
        )
    return mode


def _use_cores(tf: Any, n: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    tf.config.set_visible_devices([], "GPU")
    cpu = tf.config.list_physical_devices("CPU")[0]
    parts = [tf.config.LogicalDeviceConfiguration() for _ in range(n + 1)]
    tf.config.set_logical_device_configuration(cpu, parts)
    # A device is worth one core: its operations use one thread each, and no more of them run at
    # once than there are devices.
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(n)
    return tuple(f"/CPU:{i + 1}" for i in range(n)), ("one thread",) * n


# What a plan needs to know of its devices: their names, what stands behind each, and the details
# of each one's GPU.
_Devices = tuple[tuple[str, ...], tuple[str, ...], dict[str, trial.Details]]


def _use_gpus(tf: Any, gpus: list[Any], details: list[trial.Details], n: int) -> _Devices:
    tf.config.set_visible_devices(gpus, "GPU")
    for gpu in gpus:
        tf.config.experimental.set_memory_growth(gpu, True)
    names = tuple(f"/GPU:{i}" for i in range(n))
    return names, tuple(map(_gpu_name, details)), dict(zip(names, details, strict=True))


def _split_gpus(tf: Any, gpus: list[Any], details: list[trial.Details], n: int) -> _Devices:
    shares = [n // len(gpus) + (i < n % len(gpus)) for i in range(len(gpus))]
    tf.config.set_visible_devices(gpus, "GPU")
    limit = _share(shares, len(tf.config.list_physical_devices("GPU")))
    dealt = []  # a share each: its place on its GPU, the GPU, its name, what it is
    for i, (gpu, count) in enumerate(zip(gpus, shares, strict=True)):
        part = tf.config.LogicalDeviceConfiguration(memory_limit=limit)
        tf.config.set_logical_device_configuration(gpu, [part] * count)
        what = f"{limit} MiB of {_gpu_name(details[i])}"
        if len(gpus) > 1:
            what += f" no. {i + 1}"
        if count > 1:
            what += f", shared by {count} devices"
        dealt += [(place, i, f"/GPU:{len(dealt) + place}", what) for place in range(count)]
    # TensorFlow numbers the shares GPU by GPU. Here the first devices are on different GPUs, so
    # that one and two devices are one and two GPUs.
    dealt.sort()
    names = tuple(name for _, _, name, _ in dealt)
    return names, tuple(what for *_, what in dealt), {name: details[i] for _, i, name, _ in dealt}


def _share(shares: list[int], seen: int) -> int:
    """Choose the memory limit of a device in MiB, for so many on each of the GPUs in use.

    `seen` is how many GPUs TensorFlow sees: when CUDA shows as many, in an order that is known,
    each GPU's own memory counts. Else each may be the fullest one of the machine.
    """
    report = nvml.query()
    cards = visible.shown(report)
    if cards is None or len(cards) != seen:
        known = [] if visible.mig() else [gpu for gpu in report.gpus if gpu.memory_free is not None]
        cards = sorted(known, key=lambda gpu: gpu.memory_free)[:1] * len(shares)
    limit = 4096 if cards else 1024
    for card, count in zip(cards, shares, strict=False):
        free = card.memory_free
        limit = min(limit, 1024 if free is None else int(0.8 * free / MEBIBYTE / count))
        if limit < 256:
            raise RuntimeError(
                f"{free // MEBIBYTE} MiB are free on GPU {card.index}, too little for "
                f"{counted(count, 'device')} of 256 MiB: stop what holds the memory, or set "
                "MGPU_MODE=cores."
            )
    return limit


def _gpu_name(details: trial.Details) -> str:
    return details.get("device_name", "GPU")


def _float32(details: Iterable[trial.Details]) -> str:
    if not any(each.get("compute_capability", (0, 0)) >= AMPERE for each in details):
        return ""
    return "TF32 is off: products are exact to rounding; with devices.tf32() faster, and 1e-3 off"


def _verify(tf: Any, wanted: list[str]) -> None:
    try:
        got = [short(device.name) for device in tf.config.list_logical_devices()]
    except (RuntimeError, tf.errors.OpError) as error:
        lost = (gpu.problem.rstrip(".") for gpu in nvml.query().gpus if gpu.problem)
        why = next(lost, str(error).splitlines()[0])
        raise RuntimeError(
            f"TensorFlow does not start ({why}): restart the kernel with "
            "MGPU_MODE=cores to go on without a GPU; `python -m mgpu_helpers` says more."
        ) from None
    if sorted(got) != sorted(wanted):
        raise RuntimeError(
            f"TensorFlow was asked for {', '.join(wanted)} and made {', '.join(got)}: "
            "restart the kernel; if it stays so, `python -m mgpu_helpers` says more."
        )


def _describe(mode: str, gpus: int) -> tuple[int, str, str]:
    cores = _cores()
    if mode == "cores":
        note = f"{counted(gpus, 'GPU')} not used (MGPU_MODE=cores)" if gpus else "no GPU"
    else:
        note = f"{counted(gpus, 'GPU')} seen"
    machine = f"{_processor()}, {counted(cores, 'core')}"
    if mode != "cores":
        machine = f"{counted(gpus, 'GPU')}, {machine}"
    return cores, machine, note


@functools.cache
def _cores() -> int:
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
def _processor() -> str:
    try:
        found = re.search(r"^model name\s*: (.+)$", Path("/proc/cpuinfo").read_text(), re.M)
    except OSError:
        found = None
    return found[1].strip() if found else platform.processor() or platform.machine()
