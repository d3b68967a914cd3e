"""Choose a mode for this machine, configure TensorFlow for it, and make the plan."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterator
from typing import Any

from mgpu_helpers import _private, _quiet, nvml
from mgpu_helpers._formatting import counted, whole_number
from mgpu_helpers._names import order, short
from mgpu_helpers.devices import machine, trial
from mgpu_helpers.devices.messages import Details, explained
from mgpu_helpers.devices.plan import MEBIBYTE, MOST, Plan, asked_mode, current, remember

TF32_OFF = "TF32 is off: products are exact to rounding; with devices.tf32() faster, and 1e-3 off"
AMPERE = (8, 0)  # the compute capability from which on GPUs have TF32
_Device = tuple[str, str, Details]  # its name, what stands behind it, the details of its GPU


def setup(n: int | None = None, *, exact: bool = False) -> Plan:
    """Configure TensorFlow for a host and n devices, and return the plan.

    None takes all GPUs, or two cores where there is no GPU, as for a first try without one.
    Call it before anything else touches TensorFlow. MGPU_DEVICES overrides n; MGPU_MODE (gpus,
    split-gpu or cores) overrides the mode, which otherwise follows from the GPUs that are there.
    Each device runs a small operation before the plan is returned, so that one which
    does not work is named here; not where TF_CONFIG names several workers, for there TensorFlow has
    to start with their strategy. MGPU_MODE=cores hides the GPUs from CUDA, for this process and
    those that it starts.

    exact: GPUs compute products without TF32, slower, so that devices can be proven equal; `tf32`
    says what that is. Without it TensorFlow's setting stays as it is.

    >>> plan = setup(2)
    >>> plan.host, len(plan.devices)
    ('/CPU:0', 2)
    """
    wanted = os.environ.get("MGPU_DEVICES")
    asked = int(wanted) if wanted and wanted.strip().isdecimal() else wanted or n
    what = "MGPU_DEVICES" if wanted else "n"
    if asked is not None:
        n = whole_number(what, asked, "a number of devices", 1, most=MOST)
    plan = current()
    if plan and (asked is None or len(plan) == n) and plan.mode != "adopted":
        if exact:
            _compute_exactly()
        return plan
    # CUDA's own order is fastest first; nvidia-smi's is by bus. One order everywhere is worth more.
    os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    report, hidden = nvml.query(), 0
    if os.environ.get("MGPU_MODE") == "cores":
        hidden = machine.hide(report)
    else:
        machine.check(report)
    _quiet.start()
    import tensorflow as tf

    if plan or _private.started():
        raise RuntimeError(
            "TensorFlow has started, and its devices cannot change any more: take them as they are "
            f"with devices.adopt(), or restart the kernel and call devices.setup({n or ''}) first."
        )
    gpus = tf.config.list_physical_devices("GPU")
    if n is None:
        few = os.environ.get("MGPU_MODE") in ("cores", "split-gpu")
        n = 2 if few else min(len(gpus), MOST) or 2
    mode = _mode(n, len(gpus))
    if mode == "cores":
        chosen = _use_cores(tf, n)
        if gpus:
            warnings.warn(
                f"TensorFlow had listed {counted(len(gpus), 'GPU')} before they could be hidden "
                "from it, and where Keras finds one in that list it compiles with XLA: restart the "
                f"kernel and call devices.setup({n}) before anything else, or compile with "
                "jit_compile=False.",
                stacklevel=2,
            )
    else:
        chosen = _use_gpus(tf, gpus, n, report, whole=mode == "gpus")
    names, real, details = (tuple(column) for column in zip(*chosen, strict=True))
    trial.announce(details)
    if exact:
        _compute_exactly()
    if not machine.one_of_several_workers():
        with _quiet.kept_back():
            _verify(tf, ["/CPU:0", *names])
            for name, _, each in chosen:
                trial.run(name, each)
        trial.try_xla(details)
        _quiet.first_session()
    has_tf32 = any(each.get("compute_capability", (0, 0)) >= AMPERE for each in details)
    said = TF32_OFF if has_tf32 and exact else ""
    described = *_described(mode, len(gpus) or hidden), said
    return remember(Plan(mode, "/CPU:0", names, real, *described))


def adopt() -> Plan:
    """Return a plan of the devices that TensorFlow has, and change nothing about them.

    It is for a notebook that has set TensorFlow up by itself; `setup` is for all others. The
    devices are TensorFlow's logical GPUs; without any, its logical CPUs from the second on; with a
    single CPU, that one. Threads, memory growth and limits, and TF32 stay as the notebook set them.
    Where TensorFlow has not started, it starts now, with what it takes by itself. After `setup` or
    an earlier `adopt` it returns the plan that was made then.

    >>> adopt() is plan
    True
    """
    if plan := current():
        return plan
    import tensorflow as tf

    names = sorted((short(each.name) for each in tf.config.list_logical_devices()), key=order)
    gpus = tuple(name for name in names if name.startswith("/GPU"))
    cpus = tuple(name for name in names if name.startswith("/CPU"))
    seen = len(tf.config.list_physical_devices("GPU"))
    visible = tf.config.get_visible_devices("GPU")
    cores, words, _ = _described("adopted" if gpus else "cores", len(visible))
    devices = gpus or cpus[1:] or cpus
    if gpus:
        real = [what for gpu in visible for what in _parts(tf, gpu)]
        if len(real) != len(gpus):  # made by what tf.config does not tell of
            real = ["GPU"] * len(gpus)
    else:
        threads = tf.config.threading.get_intra_op_parallelism_threads() or cores
        real = [f"{counted(threads, 'thread')} for an operation"] * len(devices)
    note = f"{counted(seen, 'GPU')} seen" if seen else "no GPU"
    return remember(Plan("adopted", "/CPU:0", devices, tuple(real), cores, words, note))


@contextlib.contextmanager
def tf32() -> Iterator[None]:
    """Let GPUs compute float32 products and convolutions in TF32 within the block.

    TF32 rounds what is multiplied to 10 bits: much faster on GPUs from Ampere on (compute
    capability 8.0), and about 1e-3 off. It is TensorFlow's default, and `setup(exact=True)`
    switches it off, so that devices can be proven equal. On other GPUs, and on cores, the block
    changes nothing.

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


def _compute_exactly() -> None:
    import tensorflow as tf

    tf.config.experimental.enable_tensor_float_32_execution(False)


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


def _use_cores(tf: Any, n: int) -> list[_Device]:
    tf.config.set_visible_devices([], "GPU")
    cpu = tf.config.list_physical_devices("CPU")[0]
    parts = [tf.config.LogicalDeviceConfiguration() for _ in range(n + 1)]
    tf.config.set_logical_device_configuration(cpu, parts)
    # A device is worth one core: its operations use one thread each, and no more of them run at
    # once than there are devices.
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(n)
    # And XLA computes in threads of its device: of a common one, compiled devices would take turns.
    os.environ.setdefault("TF_OVERRIDE_GLOBAL_THREADPOOL", "1")
    return [(f"/CPU:{i + 1}", "one thread for each operation", {}) for i in range(n)]


def _use_gpus(
    tf: Any, seen: list[Any], n: int, report: nvml.DriverReport, whole: bool
) -> list[_Device]:
    """Share n devices out over the GPUs: each is a whole one, or has a limit of memory."""
    gpus = seen[:n]
    counts = [n // len(gpus) + (i < n % len(gpus)) for i in range(len(gpus))]
    limit = None if whole else _limit(counts, len(seen), report)
    with _quiet.kept_back():
        details = [tf.config.experimental.get_device_details(gpu) for gpu in gpus]
    tf.config.set_visible_devices(gpus, "GPU")
    dealt: list[tuple[int, int, _Device]] = []  # the place of each on its GPU, and the GPU's
    for i, (gpu, count) in enumerate(zip(gpus, counts, strict=True)):
        what = details[i].get("device_name", "GPU")
        if limit is None:
            tf.config.experimental.set_memory_growth(gpu, True)
        else:
            part = tf.config.LogicalDeviceConfiguration(memory_limit=limit)
            tf.config.set_logical_device_configuration(gpu, [part] * count)
            what = f"{limit} MiB of {what}" + (f" no. {i + 1}" if len(gpus) > 1 else "")
            what += f", shared by {count} devices" if count > 1 else ""
        first = len(dealt)  # TensorFlow numbers the shares GPU by GPU
        dealt += [(j, i, (f"/GPU:{first + j}", what, details[i])) for j in range(count)]
    # Here the first devices are on different GPUs: one and two devices are one and two GPUs.
    return [device for *_, device in sorted(dealt, key=lambda each: each[:2])]


def _limit(counts: list[int], seen: int, report: nvml.DriverReport) -> int:
    """Choose the memory limit of a device in MiB, for so many on each of the GPUs in use.

    `seen` is how many GPUs TensorFlow sees: when CUDA shows as many, in an order that is known,
    each GPU's own memory counts. Else each may be the fullest one of the machine.
    """
    cards = machine.shown(report)
    if cards is None or len(cards) != seen:
        known = [] if machine.mig() else [gpu for gpu in report.gpus if gpu.memory_free is not None]
        cards = sorted(known, key=lambda gpu: gpu.memory_free or 0)[:1] * len(counts)
    limit = 4096 if cards else 1024
    for card, count in zip(cards, counts, strict=False):
        free = card.memory_free
        limit = min(limit, 1024 if free is None else int(0.8 * free / MEBIBYTE / count))
        if free is not None and limit < 256:
            raise RuntimeError(
                f"{free // MEBIBYTE} MiB are free on GPU {card.index}, too little for "
                f"{counted(count, 'device')} of 256 MiB: stop what holds the memory, or set "
                "MGPU_MODE=cores."
            )
    return limit


def _parts(tf: Any, gpu: Any) -> list[str]:
    """Say what each logical GPU of a GPU is, in the order of their names."""
    name = tf.config.experimental.get_device_details(gpu).get("device_name", "GPU")
    parts = tf.config.get_logical_device_configuration(gpu) or [None]
    limits = [getattr(part, "memory_limit", None) for part in parts]
    shared = f", shared by {counted(len(parts), 'device')}" if len(parts) > 1 else ""
    return [f"{int(limit)} MiB of {name}{shared}" if limit else name + shared for limit in limits]


def _described(mode: str, gpus: int) -> tuple[int, str, str]:
    """Give the number of cores, the machine in words, and what the plan leaves unused."""
    cores = machine.cores()
    words = f"{machine.processor()}, {counted(cores, 'core')}"
    if mode != "cores":
        return cores, f"{counted(gpus, 'GPU')}, {words}", f"{counted(gpus, 'GPU')} seen"
    return cores, words, f"{counted(gpus, 'GPU')} not used (MGPU_MODE=cores)" if gpus else "no GPU"


def _verify(tf: Any, wanted: list[str]) -> None:
    try:
        made = [short(device.name) for device in tf.config.list_logical_devices()]
    except (RuntimeError, tf.errors.OpError) as error:
        why = explained(error, "the GPU", {}, "{first}").rstrip(".")
        raise RuntimeError(
            f"TensorFlow does not start ({why}): restart the kernel with "
            "MGPU_MODE=cores to go on without a GPU; `python -m mgpu_helpers` says more."
        ) from None
    if sorted(made) != sorted(wanted):
        raise RuntimeError(
            f"TensorFlow was asked for {', '.join(wanted)} and made {', '.join(made)}: "
            "restart the kernel; if it stays so, `python -m mgpu_helpers` says more."
        )
