"""What a trace holds: operations, copies, collectives, allocations; and how their times add up."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np


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
    tell. by is the library that the graph asks for, such as "ring" or "nccl", "" where it does not.
    """

    op: str
    device: str
    bytes: int | None
    start: float
    length: float
    waited: float | None = None
    group: int | None = None
    by: str = ""


@dataclass(frozen=True)
class Allocation:
    """Bytes that an operation took on its device; seconds from the start of the step.

    end is None for what the step holds more when it is over. A variable's new value, made while
    others still read the old one, ends with the old one: the variable is as large as before.
    scratch is True for what the operation gave back before it ended, a library's workspace; what it
    makes for others is not.

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


def nanos(seconds: float) -> int:
    """Give whole nanoseconds, in which clocks count: they add up and compare exactly."""
    return round(seconds * 1e9)


def lanes(ops: Iterable[Op]) -> list[list[Op]]:
    """Lay operations that overlap beside each other, each into the first lane that is free.

    >>> lanes([Op(name, "Add", "/CPU:1", start, 2.0) for name, start in (("a", 0), ("b", 1))])
    [[Op(name='a', ...)], [Op(name='b', ...)]]
    """
    laid: list[list[Op]] = []
    for op in ops:
        for lane in laid:
            if nanos(lane[-1].end) <= nanos(op.start):
                lane.append(op)
                break
        else:
            laid.append([op])
    return laid


def curve(allocations: Iterable[Allocation]) -> tuple[tuple[float, int], ...]:
    """Add up the bytes held over time, from allocations of one device.

    Give pairs of (seconds, bytes held from then on), the first of them (0.0, 0).

    Their clock ticks in microseconds. Of what falls on one tick, what was held before is freed
    first: an operation starts after the one before it has freed its inputs.

    >>> curve([Allocation("a", "/CPU:1", 400, start=0.5, end=2.0)])
    ((0.0, 0), (0.5, 400), (2.0, 0))
    """
    changes = [(0.0, 0, 0)]
    for each in allocations:
        changes.append((each.start, 1, each.bytes))
        if each.end is not None:
            changes.append((each.end, 2 if each.end == each.start else 0, -each.bytes))
    changes.sort()
    held = itertools.accumulate(change for *_, change in changes)
    return tuple((moment, live) for (moment, *_), live in zip(changes, held, strict=True))


def overlap(spans: Iterable[tuple[float, float]], least: int = 1) -> Callable[[int, int], int]:
    """Return what counts the ns, from one moment to another, in which so many spans overlap.

    Spans are in seconds, moments in ns.

    >>> overlap([(0.0, 2e-9), (1e-9, 5e-9)], least=2)(0, 9)
    1
    """
    changes = Counter({0: 0})
    for start, end in spans:
        changes[nanos(start)] += 1
        changes[nanos(end)] -= 1
    moments = np.array(sorted(changes), float)
    at_once = np.cumsum([changes[moment] for moment in sorted(changes)])[:-1]
    totals = np.append(0.0, np.cumsum(np.diff(moments) * (at_once >= least)))

    def within(start: int, end: int) -> int:
        before, after = np.interp([start, end], moments, totals)
        return round(after - before)

    return within
