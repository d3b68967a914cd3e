"""What one step was: its operations, its copies, its allocations, and when each device worked."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from mgpu_helpers.names import order

if TYPE_CHECKING:
    from mgpu_helpers.trace.summary import Top


@dataclass(frozen=True)
class Op:
    """An operation that ran; times in seconds from the start of the step.

    bytes is what it gave to others, 0 for nothing and for what has no fixed size; what oneDNN's
    operations keep for their own gradients is not counted.

    On a GPU an operation lasts from its first kernel's start to its last one's end, and TensorFlow
    keeps both in whole microseconds. One that needs no kernel, such as a Reshape, has length 0 at
    the moment when what it needs is ready. NCCL's kernels carry no operation: a collective lasts
    from that moment until the host heard that it was over.
    """

    name: str
    type: str
    device: str
    start: float
    length: float
    bytes: int = 0

    @property
    def end(self) -> float:
        """Give the moment when it was over, to the nanosecond, as clocks count.

        So of two that touch, one ends when the other starts: start + length may be later than that.
        """
        return round(self.start + self.length, 9)


@dataclass(frozen=True)
class Copy:
    """A tensor that one device made and another used; bytes is None where nothing reports it.

    It starts when the source has made it and ends when the target first uses it, so its length
    holds the transfer and the wait.
    """

    tensor: str
    source: str
    target: str
    bytes: int | None
    start: float
    length: float


@dataclass(frozen=True)
class Collective:
    """What a device gave to an operation that several devices do together, such as an all-reduce.

    bytes is the size of the tensor that it gave, None where nothing reports it. Which part of it
    went to which device is the library's choice (in a ring of n, a device sends 2 (n - 1) / n of it
    to the next one) and is not recorded. So it is no Copy. Seconds from the start of the step; the
    length holds the wait for the other devices.

    Those of a group are one operation of several devices, and its work begins when the last of them
    has come: waited is the part of the length before that. Both are None where the trace does not
    tell.
    """

    op: str
    device: str
    bytes: int | None
    start: float
    length: float
    waited: float | None = None
    group: int | None = None


@dataclass(frozen=True)
class Allocation:
    """Bytes that an operation took on its device; seconds from the start of the step.

    end is None for what is still held when the step is over. scratch is True for what the
    operation gave back before it ended, a library's workspace; what it makes for others is not.

    On a GPU these are the moments at which the host, which runs ahead, took and gave back. A tensor
    counts as many bytes as were asked for; a workspace as many as the allocator set aside, which
    may be more.
    """

    op: str
    device: str
    bytes: int
    start: float
    end: float | None
    scratch: bool = False


@dataclass(frozen=True)
class Trace:
    """One step: its operations, its copies, and the live bytes of each device over time.

    The bytes are those that operations took. TensorFlow does not record what a GPU takes to receive
    a copy. launches_only is True where it recorded no kernels of the GPUs, because libcupti is
    missing or another profiler runs: their times are then those in which the host launched the
    operations, which say nothing about how long they ran.
    """

    ops: tuple[Op, ...]
    copies: tuple[Copy, ...]
    #: by device: moments, in seconds, and the bytes that it held from then on
    memory: dict[str, tuple[tuple[float, int], ...]] = field(repr=False)
    #: which operation feeds which
    edges: tuple[tuple[str, str], ...] = field(repr=False)
    allocations: tuple[Allocation, ...] = field(default=(), repr=False)
    waits: tuple[tuple[str, str], ...] = field(default=(), repr=False)  #: edges that carry nothing
    #: by GPU, when its kernels ran: start and end in seconds
    kernels: dict[str, tuple[tuple[float, float], ...]] = field(default_factory=dict, repr=False)
    launches_only: bool = False
    collectives: tuple[Collective, ...] = ()
    metadata: Any = field(default=None, repr=False, compare=False)

    def __repr__(self) -> str:
        return (
            f"{len(self.ops)} operations on {', '.join(self.devices)}; "
            f"{len(self.copies)} copies between them"
            f"{'; times on GPUs are launches, not kernels' if self.launches_only else ''}"
        )

    @property
    def devices(self) -> tuple[str, ...]:
        """Name the devices that ran something, in order."""
        return tuple(sorted({op.device for op in self.ops}, key=order))

    @property
    def length(self) -> float:
        """Give the seconds from the first operation's start to the last one's end."""
        ends = [end for spans in self.kernels.values() for _, end in spans]
        return max((*ends, *(op.end for op in self.ops)), default=0.0)

    def busy(self, device: str) -> float:
        """Add up the seconds in which the device ran an operation, or a GPU a kernel.

        A collective's wait for other devices does not count, but on a GPU, whose kernel waits.
        """
        total = reached = 0  # nanoseconds
        spans = [(op.start, op.end) for op in working(self) if op.device == device]
        for start, end in sorted(self.kernels.get(device, spans)):
            total += max(0, nanos(end) - max(nanos(start), reached))
            reached = max(reached, nanos(end))
        return total / 1e9

    def idle(self, device: str) -> float:
        """Give the share of the step, 0 to 1, in which the device ran nothing."""
        return 1 - self.busy(device) / self.length if self.length else 0.0

    def peak(self, device: str, scratch: bool = True) -> int:
        """Give the most bytes that the step held on the device at once, with or without scratch."""
        live = self.memory.get(device, ())
        if not scratch:
            live = curve(a for a in self.allocations if a.device == device and not a.scratch)
        return max((live for _, live in live), default=0)

    def bytes_between(self) -> dict[tuple[str, str], int]:
        """Add up the bytes that crossed, by (source, target)."""
        total: dict[tuple[str, str], int] = defaultdict(int)
        for copy in self.copies:
            total[copy.source, copy.target] += copy.bytes or 0
        return dict(sorted(total.items(), key=lambda item: (order(item[0][0]), order(item[0][1]))))

    def top(
        self, n: int | None = 10, by: str = "operation", layers: Collection[str] | None = None
    ) -> Top:
        """List the n that took the most time, None all, by "operation", "layer" or "type".

        A collective counts without its wait for other devices. layers names those of a Keras model,
        as `[layer.name for layer in model.layers]` does; without it the operations' names decide,
        as `trace.layer` says.

        >>> op = Op("encoder/MatMul", "MatMul", "/CPU:1", start=0.0, length=0.002, bytes=40)
        >>> Trace((op,), (), {}, ()).top(by="layer")
        layer    device  time      share   bytes  count
        encoder  /CPU:1  2.000 ms  100.0%  40 B   1
        """
        from mgpu_helpers.trace.summary import top

        return top(self, n, by, layers)

    def table(self, layers: Collection[str] | None = None) -> list[dict[str, Any]]:
        """Make a row of each operation, by its start: what an `Op` has, and its layer.

        With pandas installed `pandas.DataFrame(step.table())` makes a table of them.

        >>> Trace((Op("x", "Add", "/CPU:1", 0.0, 0.001),), (), {}, ()).table()[0]["type"]
        'Add'
        """
        from mgpu_helpers.trace.summary import rows

        return rows(self, layers)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the trace into a file of JSON, whole or not at all, for `trace.load`.

        >>> Trace((Op("x", "Add", "/CPU:1", 0.0, 0.001),), (), {}, ()).save("step.json")
        """
        from mgpu_helpers.trace.export import save

        save(self, path)

    def chrome(self, path: str | os.PathLike[str], layers: Collection[str] | None = None) -> None:
        """Write the trace for Perfetto (https://ui.perfetto.dev) and for chrome://tracing.

        A device is a process, and operations that overlap are threads of it. An arrow is a copy,
        from the operation that made it to the first that uses it. Below are the bytes held.

        >>> Trace((Op("x", "Add", "/CPU:1", 0.0, 0.001),), (), {}, ()).chrome("step.trace.json")
        """
        from mgpu_helpers.trace.export import chrome

        chrome(self, path, layers)


def traced(step: Any) -> Trace:
    """Give the step; raise TypeError if it is none, but a model or what a helper gave with it."""
    if isinstance(step, Trace):
        return step
    what, remedy = type(step).__name__, "what trace.fit_step returns"
    if isinstance(step, tuple) and any(isinstance(each, Trace) for each in step):
        remedy = "its second part, as in `value, step = trace.function_step(…)`"
    elif isinstance(getattr(step, "trace", None), Trace):
        remedy = "its .trace"
    raise TypeError(f"a {what} is no traced step: give {remedy}.")


def nanos(seconds: float) -> int:
    """Give whole nanoseconds, in which clocks count: they add up and compare exactly."""
    return round(seconds * 1e9)


def working(step: Trace) -> list[Op]:
    """List a step's operations by their start, each collective without its wait for others."""
    waited = {each.op: each.waited for each in step.collectives if each.waited}
    if not waited:
        return list(step.ops)
    ops = [
        replace(op, start=op.start + waited[op.name], length=op.length - waited[op.name])
        if op.name in waited else op for op in step.ops
    ]  # fmt: skip
    return sorted(ops, key=lambda op: op.start)


def lanes(ops: Iterable[Op]) -> list[list[Op]]:
    """Lay operations that overlap beside each other, each into the first lane that is free.

    >>> lanes([Op(name, "Add", "/CPU:1", start, 2.0) for name, start in (("a", 0), ("b", 1))])
    [[Op(name='a', ...)], [Op(name='b', ...)]]
    """
    made: list[list[Op]] = []
    for op in ops:
        free = (lane for lane in made if nanos(lane[-1].end) <= nanos(op.start))
        lane = next(free, None)
        if lane is None:
            made.append(lane := [])
        lane.append(op)
    return made


def curve(allocations: Iterable[Allocation]) -> tuple[tuple[float, int], ...]:
    """Add up the bytes held over time, from allocations of one device.

    Give pairs of (seconds, bytes held from then on), the first of them (0.0, 0).

    Their clock ticks in microseconds. Of what falls on one tick, what was held before is freed
    first: an operation starts after the one before it has freed its inputs.

    >>> curve([Allocation("a", "/CPU:1", 400, start=0.5, end=2.0)])
    ((0.0, 0), (0.5, 400), (2.0, 0))
    """
    changes = []
    for each in allocations:
        changes.append((each.start, 1, each.bytes))
        if each.end is not None:
            changes.append((each.end, 2 if each.end == each.start else 0, -each.bytes))
    live, curve = 0, [(0.0, 0)]
    for moment, _, change in sorted(changes):
        live += change
        curve.append((moment, live))
    return tuple(curve)
