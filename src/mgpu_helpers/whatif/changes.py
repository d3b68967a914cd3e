"""What a change would give: the step replayed with other times, on other devices, over a link."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace

from mgpu_helpers._formatting import counted, whole_number
from mgpu_helpers._names import order
from mgpu_helpers.scaling.model import positive
from mgpu_helpers.timing import Comparison, Timing
from mgpu_helpers.trace.step import Trace, traced
from mgpu_helpers.whatif.edit import in_towers, over_link, scaled_by
from mgpu_helpers.whatif.machine import measured
from mgpu_helpers.whatif.model import in_order, on_threads
from mgpu_helpers.whatif.work import Task, apart, tasks_of, threads_of

Steps = Trace | Sequence[Trace]


class Replay(Comparison):
    """Replays of traced steps (`a`, replayed) and the steps themselves (`b`, traced)."""

    def __repr__(self) -> str:
        where = " in the median" if len(self.ratios) > 1 else ""
        off = f"{self.ratio - 1:+.1%}{where}{_many(self.ratios)}"
        return f"replayed in {_ms(self.a)}, traced in {_ms(self.b)} ({off})"


class Change(Comparison):
    """Replays of traced steps as they are (`a`, before) and with a change (`b`, after)."""

    def __repr__(self) -> str:
        slower = self.ratio < 1
        middle, *ends = (1 / x if slower else x for x in (self.ratio, self.low, self.high))
        spread = f" ({min(ends):.2f} to {max(ends):.2f}" if len(self.ratios) > 1 else ""
        spread += _many(self.ratios) + ")" if spread else ""
        way = "as slow" if slower else "as fast"
        said = "no faster" if f"{middle:.2f}" == "1.00" else f"{middle:.2f} times {way}"
        return f"{self.names[1]}: {_ms(self.a)} would be {_ms(self.b)}, {said}{spread}"


def replay(step: Steps) -> Replay:
    """Replay a step from its trace, or several traces each: seconds, beside what was traced.

    On CPUs the operations are laid out on as many threads as worked at once, by TensorFlow's rule;
    see `measured` for what is added to each. A GPU does one after the other in the traced order,
    each as long after what it needs as in the trace: that the host launches early enough is taken
    for granted. The work of a collective, such as an all-reduce, begins when the last of its
    devices comes. Raise ValueError where the trace does not tell: a step under 2 ms, with a loop,
    with collectives that cannot be matched, or without the kernels of its GPU.

    >>> from mgpu_helpers.trace import Op, Trace
    >>> two = Op("a", "Add", "/GPU:0", 0.0, 0.01), Op("b", "Add", "/GPU:1", 0.01, 0.01)
    >>> replay(Trace(two, (), {}, (("a", "b"),)))
    replayed in 20.0 ms, traced in 20.0 ms (+0.0%)
    """
    steps = _steps(step)
    replayed = tuple(_seconds(_tasks(each), threads_of(each)) for each in steps)
    return Replay(Timing(replayed), Timing(tuple(each.length for each in steps)))


def faster(step: Steps, pattern: str, by: float = 2.0) -> Change:
    """Say what the step would take if some operations were so many times as fast.

    They are those in whose name or type the regular expression is found; so a layer's name finds
    its operations, of both passes. A `by` below 1 makes them slower.

    >>> from mgpu_helpers.trace import Op, Trace
    >>> op = Op("conv1/Conv2D", "Conv2D", "/GPU:0", 0.0, 0.02)
    >>> faster(Trace((op,), (), {}, ()), "Conv2D", by=4)
    'Conv2D' (1 operation) 4 times as fast: 20.0 ms would be 5.0 ms, 4.00 times as fast
    """
    positive("by", by, "how many times as fast")
    search, hits = re.compile(pattern).search, set[str]()

    def change(tasks: list[Task], _: Trace) -> list[Task]:
        found = [t for t in tasks if t.type and (search(t.name) or search(t.type))]
        if not found:
            raise ValueError(
                f"pattern={pattern!r} is in no name or type of the step's {len(tasks)} operations: "
                "step.top() lists some of them."
            )
        if all(t.untimed or t.together and not t.bytes for t in found):
            raise ValueError(
                f"pattern={pattern!r} finds only collectives, and the trace does not tell how long "
                "they worked: ask whatif.link what another link would give."
            )
        hits.update(t.name for t in found)
        return [replace(t, length=t.length / by) if t.name in hits else t for t in tasks]

    result = _changed(step, "", change)
    what = f"{pattern!r} ({counted(len(hits), 'operation')}) {by:g} times as fast"
    return replace(result, names=("the step", what))


def link(step: Steps, bytes_per_second: float) -> Change:
    """Say what the step would take if devices were joined by a link of so many bytes a second.

    Each pair of devices has one link for each direction, which carries a tensor at a time. In a
    collective they are a ring: each of n devices that add up P bytes sends 2 (n - 1) / n P. In
    cores mode copies take no time as they are; on GPUs the link is in place of the traced one.

    >>> from mgpu_helpers.trace import Op, Trace
    >>> from mgpu_helpers.trace.records import Copy
    >>> two = Op("a", "Add", "/GPU:0", 0.0, 0.01), Op("b", "Add", "/GPU:1", 0.01, 0.01)
    >>> copy = Copy("a", "/GPU:0", "/GPU:1", 10_000_000, start=0.01, length=0.0)
    >>> link(Trace(two, (copy,), {}, (("a", "b"),)), 1e9)
    a link of 1 GB/s: 20.0 ms would be 30.0 ms, 1.50 times as slow
    """

    def change(tasks: list[Task], step: Trace) -> list[Task]:
        sizes: dict[tuple[str, str], int] = defaultdict(int)
        for copy in step.copies:
            sizes[copy.tensor.partition(":")[0], copy.target] += copy.bytes or 0
        return over_link(tasks, lambda t, to: sizes[t.name, to], bytes_per_second)

    return _changed(step, f"a link of {_speed(bytes_per_second)}", change)


def towers(
    step: Steps, n: int, *, batch: float | None = None, bytes_per_second: float | None = None
) -> Change:
    """Say what the step of one device would take in towers on n, with an average of the gradients.

    Each device has `batch` times the traced batch: with None, an n-th of it. What the optimizer and
    the variables do, and what takes under 3 µs, stays as long; the time of everything else is taken
    to grow with the batch. The first device averages and updates the variables. bytes_per_second is
    what the link from each device to each other carries; None, in cores mode only, lets copies take
    no time. Each device is worth a core. With n=1 nothing but the batch changes, on any devices.

    >>> from mgpu_helpers.trace import Op, Trace
    >>> op = Op("conv1/Conv2D", "Conv2D", "/GPU:0", 0.0, 0.02)
    >>> towers(Trace((op,), (), {}, ()), 2, bytes_per_second=8e9)
    2 towers by a link of 8 GB/s: 20.0 ms would be 10.0 ms, 2.00 times as fast
    >>> towers(Trace((op,), (), {}, ()), 1, batch=0.25)
    1 tower with 0.25 times the batch each: 20.0 ms would be 5.0 ms, 4.00 times as fast
    """
    n = whole_number("n", n, "a number of towers", 1)
    share = 1 / n if batch is None else batch
    positive("batch", share, "a share of the batch")

    def change(tasks: list[Task], step: Trace) -> list[Task]:
        made = spread(tasks, step) if n > 1 else scaled_by(tasks, share)
        if bytes_per_second is None:
            return made
        return over_link(made, lambda task, _: task.bytes, bytes_per_second)

    def spread(tasks: list[Task], step: Trace) -> list[Task]:
        home = max(step.devices, key=step.busy)
        if more := {*step.devices} - {home, "/CPU:0"}:
            ran = ", ".join(sorted({home, *more}, key=order))
            raise ValueError(
                f"the step ran on {ran}: towers are made of a step that was traced on one device."
            )
        on_gpu = home.startswith("/GPU")
        if on_gpu and bytes_per_second is None:
            raise ValueError(
                "a trace of one GPU does not say what a copy to another takes: give "
                "bytes_per_second, such as 8e9 for PCIe 3.0."
            )
        return in_towers(tasks, home, n, share, math.inf if on_gpu else measured().adding)

    by = "" if bytes_per_second is None else f" by a link of {_speed(bytes_per_second)}"
    each = "" if batch is None else f" with {batch:.3g} times the batch each"
    return _changed(step, f"{n} tower{'s' * (n > 1)}{each}{by}", change, n)


def _changed(
    step: Steps, what: str, change: Callable[[list[Task], Trace], list[Task]], threads: int = 1
) -> Change:
    before, after = [], []
    for each in _steps(step):
        tasks, most = _tasks(each), threads_of(each)
        after.append(_seconds(change(tasks, each), max(most, threads)))
        before.append(_seconds(tasks, most))
    return Change(Timing(tuple(before)), Timing(tuple(after)), ("the step", what))


def _seconds(tasks: list[Task], threads: int) -> float:
    """Give the seconds of a step by the model that fits its devices."""
    if any(task.device.startswith("/GPU") for task in tasks):
        return max(in_order(tasks))
    return max(on_threads(tasks, threads, measured()))


def _tasks(step: Trace) -> list[Task]:
    tasks = tasks_of(step)
    if kinds := apart(step):
        raise ValueError(
            f"this step cannot be replayed: the trace does not tell which of its collectives "
            f"({kinds}) belong together, so how long devices waited in them is not known."
        )
    return tasks


def _steps(step: Steps) -> list[Trace]:
    return [traced(each) for each in (step if isinstance(step, Sequence) and step else [step])]


def _speed(bytes_per_second: float) -> str:
    positive("bytes_per_second", bytes_per_second, "a speed")
    return f"{bytes_per_second / 1e9:.3g} GB/s"


def _ms(timing: Timing) -> str:
    return f"{timing.median * 1e3:.1f} ms"


def _many(values: Sequence[float]) -> str:
    return f", {len(values)} traces" if len(values) > 1 else ""
