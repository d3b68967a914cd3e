"""Choose a mode for this machine, configure TensorFlow for it, and make the plan."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterable, Iterator
from typing import Any

from mgpu_helpers import nvml, private, quiet
from mgpu_helpers.devices import trial, visible
from mgpu_helpers.devices.machine import describe
from mgpu_helpers.devices.plan import MEBIBYTE, MOST, Plan, asked_mode, current, remember
from mgpu_helpers.names import short
from mgpu_helpers.wording import counted, whole_number

AMPERE = (8, 0)  # the compute capability from which on GPUs have TF32


def setup(n: int = 2) -> Plan:
    """Configure TensorFlow for a host and n devices, and return the plan.

    Call it before anything else touches TensorFlow. MGPU_DEVICES overrides n; MGPU_MODE (gpus,
    split-gpu or cores) overrides the mode, which otherwise follows from the GPUs that are there.
    Each device runs a small operation before the plan is returned, so that one which
    does not work is named here. TF32 is switched off: `tf32` says what that is. MGPU_MODE=cores
    hides the GPUs from CUDA, for this process and those that it starts.

    >>> plan = setup(2)
    >>> plan.host, len(plan.devices)
    ('/CPU:0', 2)
    """
    wanted, what = os.environ.get("MGPU_DEVICES"), "n"
    asked: Any = n
    if wanted:
        asked, what = int(wanted) if wanted.strip().isdecimal() else wanted, "MGPU_DEVICES"
    n = whole_number(what, asked, "a number of devices", 1, most=MOST)
    if plan := current():
        if plan.mode == "adopted":
            raise RuntimeError(
                f"devices.adopt has taken {counted(len(plan), 'device')} as TensorFlow had them, "
                "and they cannot change any more: go on with devices.current(), or restart the "
                f"kernel and call devices.setup({n}) first."
            )
        if len(plan) == n:
            return plan
        raise RuntimeError(
            f"TensorFlow has started with {counted(len(plan), 'device')} and cannot change "
            f"to {n}: restart the kernel and call devices.setup({n}) first."
        )
    # CUDA's own order is fastest first; nvidia-smi's is by bus. One order everywhere is worth more.
    os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    report, hidden = nvml.query(), 0
    if os.environ.get("MGPU_MODE") == "cores":
        hidden = visible.hide(report)
    else:
        visible.check(report)
    quiet.start()
    import tensorflow as tf

    if private.started():
        raise RuntimeError(
            "TensorFlow has started before devices.setup was called, and its devices cannot change "
            "any more: take them as they are with devices.adopt(), or restart the kernel and call "
            f"devices.setup({n}) in the first cell."
        )
    gpus = tf.config.list_physical_devices("GPU")
    mode = _mode(n, len(gpus))
    about: dict[str, trial.Details] = {}
    if mode == "cores":
        if gpus:
            _warn_of_listed(len(gpus), n)
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
    trial.try_xla(about.values())
    quiet.first_session()
    described = describe(mode, len(gpus) or hidden)
    return remember(
        Plan(mode, "/CPU:0", names, real, *described, float32=_float32(about.values()))
    )


@contextlib.contextmanager
def tf32() -> Iterator[None]:
    """Let GPUs compute float32 products and convolutions in TF32 within the block.

    TF32 rounds what is multiplied to 10 bits: much faster on GPUs from Ampere on (compute
    capability 8.0), and about 1e-3 off. It is TensorFlow's default, and `setup` switches it off, so
    that devices can be proven equal. On other GPUs, and on cores, the block changes nothing.

    The switch holds for the whole process, other threads too, and products ask for it each time
    they run, in graphs that are built already as well. Convolutions may not: TensorFlow tries
    cuDNN's algorithms when it first meets a shape on a GPU and keeps the fastest, so that a shape
    may stay exact in the block, or stay in TF32 after it. Time convolutions in a process that does
    nothing else. The choice can also differ from GPU to GPU and from run to run, by rounding (1e-6)
    only while TF32 is off; `tf.config.experimental.enable_op_determinism()` makes it the same.

    >>> with tf32():
    ...     product = tf.ones([2, 2]) @ tf.ones([2, 2])
    """
    from tensorflow import config

    before = config.experimental.tensor_float_32_execution_enabled()
    config.experimental.enable_tensor_float_32_execution(True)
    try:
        yield
    finally:
        config.experimental.enable_tensor_float_32_execution(before)


def _mode(n: int, gpus: int) -> str:
    fits = "cores" if gpus == 0 else "gpus" if gpus >= n else "split-gpu"
    mode = asked_mode() or fits
    if mode == "gpus" and gpus < n or mode == "split-gpu" and gpus == 0:
        raise RuntimeError(
            f"MGPU_MODE={mode} with {counted(n, 'device')}, but TensorFlow sees "
            f"{counted(gpus, 'GPU')}: unset MGPU_MODE to get {fits} mode, or ask "
            "`python -m mgpu_helpers` what is missing."
        )
    return mode


def _warn_of_listed(gpus: int, n: int) -> None:
    warnings.warn(
        f"TensorFlow had listed {counted(gpus, 'GPU')} before they could be hidden from it, and "
        "where Keras finds one in that list it compiles with XLA: restart the kernel and call "
        f"devices.setup({n}) before anything else, or compile with jit_compile=False.",
        stacklevel=3,
    )


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
    # A share each: its place on its GPU, the GPU, its name, what it is.
    dealt: list[tuple[int, int, str, str]] = []
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
        cards = sorted(known, key=lambda gpu: gpu.memory_free or 0)[:1] * len(shares)
    limit = 4096 if cards else 1024
    for card, count in zip(cards, shares, strict=False):
        free = card.memory_free
        limit = min(limit, 1024 if free is None else int(0.8 * free / MEBIBYTE / count))
        if free is not None and limit < 256:
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
