"""What a step holds on each device: counted, traced, and asked of TensorFlow and the driver.

Lesson 02 builds the count in front of the reader.
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mgpu_helpers import models, nvml
from mgpu_helpers.devices import MEBIBYTE, MOST, current, short
from mgpu_helpers.trace import Allocation, Trace, curve
from mgpu_helpers.wording import counted, size_text, whole

# What changes a gradient number by number, or only its shape, on its way to the optimizer.
_PASSING = {
    "Identity", "Reshape", "Cast", "CheckNumerics", "AddN", "Add", "AddV2", "Sub", "Mul", "RealDiv",
    "Square", "Sqrt", "Rsqrt", "Neg", "Maximum", "Minimum", "ConcatV2", "Split", "SplitV",
}  # fmt: skip
_TRAINED = (models.Conv, models.Dense)
_UPDATES = ("ResourceApply", "ResourceSparseApply", "Apply", "SparseApply", "AssignSub",
            "AssignAdd")  # fmt: skip


@dataclass(frozen=True, repr=False)
class Held:
    """The bytes that a training step holds at its peak, by what they are for."""

    weights: int
    slots: int  # what the optimizer keeps for each weight: Adam two numbers, momentum one
    gradients: int  # those of weights, and what the optimizer makes of them
    activations: int  # what is kept for the way back, and the gradients on their way through
    scratch: int = 0  # what a library borrows while an operation runs

    @property
    def parts(self) -> dict[str, int]:
        """Give the bytes by name; scratch only where there is some."""
        return {name: size for name, size in vars(self).items() if size or name != "scratch"}

    @property
    def total(self) -> int:
        """Add up the bytes."""
        return sum(self.parts.values())

    def __repr__(self) -> str:
        rows = [*self.parts.items(), ("total", self.total)]
        return "\n".join(f"{name:11} {size_text(size):>8}" for name, size in rows)


def predict(
    network: models.Network, batch: int, *, slots: int = 2, onednn: bool | None = None
) -> Held:
    """Count the bytes that training on one device holds at its peak, from the layers' shapes.

    slots: numbers that the optimizer keeps for each weight: 2 for Adam, 1 for momentum, 0 for
    plain descent. Nothing is dropped (keep=1.0), and the batch that is fed is not counted.
    onednn: whether TensorFlow computes with that library, as on Intel's and AMD's processors
    unless TF_ENABLE_ONEDNN_OPTS=0, and never on a GPU; None asks TensorFlow and the plan.
    """
    batch = whole("batch", batch, "a number of examples", 1)
    slots = whole("slots", slots, "a number", 0)
    if onednn is None:
        from tensorflow.python.util import _pywrap_util_port

        plan = current()
        onednn = _pywrap_util_port.IsMklEnabled() and (plan is None or plan.mode == "cores")
    weights = 4 * models.parameters(network)
    return Held(weights, slots * weights, weights, batch * _per_example(network, onednn))


def fits(
    network: models.Network, budget: int, *, slots: int = 2, onednn: bool | None = None
) -> int:
    """Give the largest batch that `predict` fits into a budget of bytes."""
    each = predict(network, 1, slots=slots, onednn=onednn)
    fixed = each.total - each.activations
    batch = int((budget - fixed) // each.activations)
    if batch < 1:
        raise ValueError(
            f"{size_text(max(0, budget))} do not hold {network.name}: one example takes "
            f"{size_text(each.activations)}, and weights, slots and gradients {size_text(fixed)}: "
            "use a smaller network, or fewer slots."
        )
    return batch


def line(batches: Sequence[int], peaks: Sequence[int]) -> tuple[float, float]:
    """Fit bytes = fixed + per_example * batch to measured peaks; give (fixed, per_example)."""
    if len(batches) != len(peaks) or len(set(batches)) < 2:
        raise ValueError(
            f"{counted(len(peaks), 'peak')} at batches {list(batches)} give no line: give a peak "
            "for each batch, and two different batches or more."
        )
    middle, height = sum(batches) / len(batches), sum(peaks) / len(peaks)
    spread = sum((batch - middle) ** 2 for batch in batches)
    rise = sum((b - middle) * (p - height) for b, p in zip(batches, peaks, strict=True))
    return height - rise / spread * middle, rise / spread


def at_peak(trace: Trace, device: str, scratch: bool = True) -> tuple[Allocation, ...]:
    """List what the step held on the device when it held most, the largest first.

    Without scratch the peak may be at another moment.
    """
    held = [a for a in trace.allocations if a.device == device and (scratch or not a.scratch)]
    if not held:
        raise ValueError(
            f"the trace has no memory of {device}: use one of "
            f"{', '.join(trace.memory) or 'the devices of a traced step'}."
        )
    moment = max(curve(held), key=lambda point: point[1])[0]
    live = [
        a for a in held
        if a.start <= moment and (a.end is None or a.end > moment or a.start == moment)
    ]  # fmt: skip
    return tuple(sorted(live, key=lambda a: -a.bytes))


def parts(
    trace: Trace, device: str, *, weights: int = 0, slots: int = 0, scratch: bool = True
) -> Held:
    """Split what the step held on the device at its peak; the weights' and slots' bytes are given.

    They were there before the step, so its trace has them not. Gradients are what flows into an
    optimizer's operation, as it was made or on its way (averaged, scaled, reshaped), and the new
    values that it writes while somebody still reads the old ones. All the rest is activations,
    what comes from other devices too.
    """
    feeds = _into_optimizer(trace)
    sizes: dict[str, int] = defaultdict(int)
    for each in at_peak(trace, device, scratch):
        kind = "gradients" if each.op in feeds else "activations"
        sizes["scratch" if each.scratch else kind] += each.bytes
    return Held(weights, slots, sizes["gradients"], sizes["activations"], sizes["scratch"])


def _into_optimizer(trace: Trace) -> set[str]:
    """Name the optimizer's operations, and those whose results flow there number by number."""
    kinds = {op.name: op.type for op in trace.ops}
    makers = defaultdict(list)
    for maker, user in set(trace.edges) - set(trace.waits):
        makers[user].append(maker)
    ahead = [name for name, kind in kinds.items() if kind.startswith(_UPDATES)]
    found = set(ahead)
    while ahead:
        for maker in makers[ahead.pop()]:
            if maker not in found:
                found.add(maker)
                ahead += [maker] if kinds.get(maker) in _PASSING else []
    return found


@dataclass(frozen=True)
class Allocator:
    """The bytes that TensorFlow has handed out on a device: now, and at most so far."""

    now: int
    peak: int


def allocator(device: str) -> Allocator:
    """Ask TensorFlow's allocator of a GPU what it has handed out, in bytes; starts TensorFlow."""
    import tensorflow as tf

    name = short(device)
    if name.startswith("/CPU"):
        raise RuntimeError(
            f"{name} has no number of its own: the logical CPUs of a process share one allocator, "
            "so each would show the same. Trace a step instead: trace.session_step, Trace.peak."
        )
    plan = current()
    known = plan.devices if plan else [short(d.name) for d in tf.config.list_logical_devices("GPU")]
    if name not in known:
        raise ValueError(f"there is no {device!r} here: use {', '.join(known) or 'a GPU'}.")
    info = tf.config.experimental.get_memory_info(name[1:])
    return Allocator(info["current"], info["peak"])


def process() -> int | None:
    """Give the resident bytes of this process; on macOS the most so far, None on Windows."""
    with contextlib.suppress(OSError):
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")
    try:
        import resource
    except ImportError:
        return None
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


@dataclass(frozen=True)
class Sample:
    """What was held `at` seconds after the start, in bytes; None where nothing says it."""

    at: float
    process: int | None
    driver: dict[int, int | None]  # by the driver's number of the GPU: all that is used there
    allocator: dict[str, int]  # by device; empty in cores mode


@dataclass(frozen=True)
class Phase:
    """A named part of what was watched, in seconds after the start."""

    name: str
    start: float
    end: float


class Monitor:
    """Watch memory from a thread while a `with` block runs, with a sample every so many seconds.

    reason says why the driver's numbers are missing; None where they are not.
    """

    def __init__(self, every: float = 0.1) -> None:
        if not (isinstance(every, int | float) and 0 < every < math.inf):
            raise ValueError(f"every={every!r} is no pause: use seconds above 0, such as 0.1.")
        self.every, self.reason = every, None
        self._samples: list[Sample] = []
        self._phases: list[Phase] = []
        self._gpus: tuple[int, ...] = ()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def samples(self) -> tuple[Sample, ...]:
        """Give the samples so far: one at each end of the block and of a phase, and the rest."""
        return tuple(sorted(self._samples, key=lambda sample: sample.at))

    @property
    def phases(self) -> tuple[Phase, ...]:
        """Give the phases that are over."""
        return tuple(self._phases)

    @property
    def peak(self) -> int:
        """Give the most bytes that the process held in a sample; 0 where nothing says it."""
        return max((s.process or 0 for s in self._samples), default=0)

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Mark what runs in the block as a phase."""
        if self._thread is None or self._stop.is_set():
            raise RuntimeError(f"phase {name!r} is not watched: open it inside `with monitor:`.")
        self._take()
        start = self._now()
        try:
            yield
        finally:
            self._phases.append(Phase(name, start, self._now()))
            self._take()

    def __enter__(self) -> Monitor:
        if self._thread is not None:
            raise RuntimeError("this monitor has been started before: make another, Monitor().")
        self._thread = threading.Thread(target=self._watch, name="mgpu-monitor", daemon=True)
        self._begin = time.perf_counter()
        self._take()
        self._thread.start()
        return self

    def __exit__(self, *error: Any) -> None:
        self._stop.set()
        self._thread.join()
        self._take()

    def _watch(self) -> None:
        while not self._stop.wait(self.every):
            self._take()

    def _take(self) -> None:
        self._samples.append(Sample(self._now(), process(), self._driver(), self._allocator()))

    def _now(self) -> float:
        return time.perf_counter() - self._begin

    def _driver(self) -> dict[int, int | None]:
        if self.reason is None:
            try:
                report = nvml.query()
            except Exception as error:  # whatever it is, the samples go on without the driver
                self.reason = f"the driver does not answer any more: {error}"
            else:
                if report.gpus:
                    self._gpus = tuple(gpu.index for gpu in report.gpus)
                    return {gpu.index: gpu.memory_used for gpu in report.gpus}
                self.reason = report.reason or "the driver finds no GPU"
        return dict.fromkeys(self._gpus)

    def _allocator(self) -> dict[str, int]:
        plan = current()  # where there is one, TensorFlow has started
        if plan is None or plan.mode == "cores":
            return {}
        return {device: allocator(device).now for device in plan.devices}


def logical(gpu: Any, limits: Sequence[int]) -> None:
    """Cut a GPU of `tf.config.list_physical_devices` into logical ones with these limits in MiB."""
    import tensorflow as tf

    limits = [whole("limit", limit, "a number of MiB", 1) for limit in limits]
    if not limits:
        raise ValueError("no limits: give one in MiB for each logical GPU, such as [1024, 1024].")
    # CUDA may number the GPUs in another order than the driver: none of them has more than this.
    most = max((card.memory_total or 0 for card in nvml.query().gpus), default=0) // MEBIBYTE
    if most and sum(limits) > most:
        raise ValueError(
            f"limits of {' + '.join(map(str, limits))} = {sum(limits)} MiB are more than the "
            f"{most} MiB that a GPU has here: use smaller limits."
        )
    _check_not_started("a GPU cannot be cut any more")
    if tf.config.experimental.get_memory_growth(gpu):
        raise ValueError(
            f"{gpu.name} grows, which does not go with a limit: set_memory_growth(gpu, False) "
            "first, or leave the limits out."
        )
    make = tf.config.LogicalDeviceConfiguration
    tf.config.set_logical_device_configuration(gpu, [make(memory_limit=mib) for mib in limits])


@contextlib.contextmanager
def pretend_gpus(n: int) -> Iterator[list[Any]]:
    """Give n GPUs that are not there, and in the block a TensorFlow that has not started.

    To try its rules: settings can be made and refusals seen, but nothing runs on such a GPU. After
    the block everything is as it was.
    """
    from tensorflow.python.eager import context

    n = whole("n", n, "a number of GPUs", 1)
    if n > MOST:
        raise ValueError(f"n={n} is more than any machine has: use 1 to {MOST}.")
    before, inside = context.context(), context.Context()
    gpus = [context.PhysicalDevice(f"/physical_device:GPU:{i}", "GPU") for i in range(n)]
    cpus = [d for d in inside.list_physical_devices() if d.device_type == "CPU"]
    inside._physical_devices = [*cpus, *gpus]
    inside._visible_device_list = [*cpus, *gpus]
    inside._memory_growth_map = dict.fromkeys(gpus)
    context._set_context(inside)
    try:
        yield gpus
    finally:
        context._set_context(before)


def _check_not_started(what: str) -> None:
    from tensorflow.python.eager import context

    if context.context()._initialized:
        raise RuntimeError(
            f"TensorFlow has started, and {what}: do it first in a new process, or restart the "
            "kernel."
        )


def _per_example(network: models.Network, onednn: bool) -> int:
    """Count the bytes that one example holds at the peak, the way forward and back."""
    layers = list(models.walk(network))
    kept = [_kept(layer, 4 * math.prod(after), onednn) for layer, _, after in layers]
    trained = [i for i, (layer, *_) in enumerate(layers) if isinstance(layer, _TRAINED)]
    if not trained:
        raise ValueError(f"{network.name} has no weights to train: add a layer that has some.")
    held = sum(kept)
    peak = held + 4 * math.prod(layers[-1][2])  # the whole way forward, and the loss's gradient
    for i in range(len(layers) - 1, trained[0] - 1, -1):
        layer, before, after = layers[i]
        if isinstance(layer, models.Dropout):
            continue
        pool = isinstance(layer, models.Pool)
        needed = held if pool else held - kept[i]  # a pool looks again at what it chose
        gradients = 4 * math.prod(after)
        free = pool and not onednn and getattr(layers[i - 1][0], "activation", "relu") != "relu"
        if i > trained[0] and not free:
            gradients += 4 * math.prod(before)
        peak = max(peak, needed + gradients)
        held -= kept[i]
    return peak


def _kept(layer: Any, output: int, onednn: bool) -> int:
    """Count the bytes of one example that a layer keeps for the way back, given its output's."""
    if isinstance(layer, models.Dropout):
        return 0
    if isinstance(layer, models.Pool):
        return output + (output // 4 if onednn else 0)  # and a byte to say which one it took
    # The bias and a ReLU are written over what they are given; a leaky ReLU keeps both sides.
    return 2 * output if layer.activation == "leaky_relu" else output
