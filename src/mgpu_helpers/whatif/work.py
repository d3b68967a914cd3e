"""A traced step as work that can be laid out again: who needs what, and how long it takes."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from mgpu_helpers.names import order
from mgpu_helpers.trace.step import Trace

SHORTEST = 2e-3  # seconds; below, what TensorFlow does between operations is most of a step


@dataclass(frozen=True)
class Task:
    """An operation to run, a node that only joins others (no type), or a copy over a link.

    before are the places, in the list of tasks, of what it needs; of these, waits give it nothing.
    gap is what passed from the moment when all was there, on a GPU also the GPU, to its start.
    """

    name: str
    type: str
    device: str
    seconds: float
    before: tuple[int, ...] = ()
    waits: frozenset[int] = frozenset()
    bytes: int = 0
    start: float = 0.0  # as traced
    gap: float = 0.0

    @property
    def end(self) -> float:
        """Give the moment when it was over, as traced."""
        return self.start + self.seconds

    @property
    def in_order(self) -> bool:
        """Say whether its device does one thing at a time, as a GPU and a link do."""
        return self.type == "copy" or self.device.startswith("/GPU")


def unknown(step: Trace, names: Sequence[str] | None = None) -> str:
    """Say why a trace does not tell what its step would do; "" where it does."""
    names = _sorted(step) if names is None else names
    if not step.ops:
        return "no operation was recorded in it"
    if step.launches_only:
        return (
            "TensorFlow recorded no kernels of the GPU, so the trace does not know how long they "
            "ran: see that libcupti is found and that no other profiler runs"
        )
    if step.collectives:
        return (
            "devices did an operation together (a collective), and the trace does not tell its "
            "work from its waiting"
        )
    if len({op.name for op in step.ops}) < len(step.ops) or not names:
        return "the step runs a loop, whose rounds the trace does not tell apart: unroll it"
    if step.length < SHORTEST:
        return (
            f"it took {step.length * 1e3:.2g} ms, and in a step under {SHORTEST * 1e3:.0f} ms what "
            "TensorFlow does between operations counts as much as they do: take a larger batch"
        )
    return ""


def tasks_of(step: Trace) -> list[Task]:
    """List what a step did, each after all that it needs; raise ValueError where none can know."""
    found = _sorted(step)
    if said := unknown(step, found):
        raise ValueError(f"this step cannot be replayed: {said}.")
    ran = {op.name: op for op in step.ops}
    place = {name: i for i, name in enumerate(found)}
    before, waits = defaultdict(set), defaultdict(set)
    for maker, user in step.edges:
        before[place[user]].add(place[maker])
    for maker, user in step.waits:
        waits[place[user]].add(place[maker])
    on_gpu = any(d.startswith("/GPU") for d in step.devices)
    free: dict[str, float] = defaultdict(float)
    tasks: list[Task] = []
    for i, name in enumerate(found):
        needs, op = tuple(sorted(before[i])), ran.get(name)
        ready = max((tasks[j].end for j in needs), default=0.0)
        if op is None:
            device = tasks[needs[0]].device if needs else ""
            tasks.append(Task(name, "", device, 0.0, needs, frozenset(waits[i]), start=ready))
            continue
        task = Task(name, op.type, op.device, op.length, needs, frozenset(waits[i]), op.bytes,
                    op.start, max(0.0, op.start - max(ready, free[op.device])))  # fmt: skip
        if on_gpu and task.in_order:
            free[op.device] = max(free[op.device], task.end)
        tasks.append(task)
    return tasks


def threads_of(step: Trace) -> int:
    """Count how many operations CPUs ran at once, at most: so many threads worked."""
    changes = [(op.start, 1) for op in step.ops if op.device.startswith("/CPU")]
    changes += [(op.start + op.length, -1) for op in step.ops if op.device.startswith("/CPU")]
    most = now = 0
    for _, change in sorted(changes):
        now += change
        most = max(most, now)
    return max(most, 1)


def home_of(step: Trace) -> str:
    """Name the device that worked longest."""
    return max(sorted(step.devices, key=order), key=step.busy)


def _sorted(step: Trace) -> list[str]:
    """List the names after all that they need, else by their start; [] if some are in a circle."""
    after: dict[str, list[str]] = defaultdict(list)
    missing: dict[str, int] = defaultdict(int)
    start = {op.name: op.start for op in step.ops}
    for maker, user in step.edges:
        after[maker].append(user)
        missing[user] += 1
    names = {*start, *(name for edge in step.edges for name in edge)}
    heap = [(start.get(name, 0.0), name) for name in names if not missing[name]]
    heapq.heapify(heap)
    found = []
    while heap:
        moment, name = heapq.heappop(heap)
        found.append(name)
        for user in after[name]:
            missing[user] -= 1
            if not missing[user]:
                heapq.heappush(heap, (start.get(user, moment), user))
    return found if len(found) == len(names) else []
