"""A traced step as work that can be laid out again: who needs what, and how long it takes."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from graphlib import CycleError, TopologicalSorter

from mgpu_helpers.trace.records import Collective, Op, lanes
from mgpu_helpers.trace.step import Trace

SHORTEST = 2e-3  # seconds; below, what TensorFlow does between operations is most of a step


@dataclass(frozen=True)
class Task(Op):
    """An operation with what it needs; a node that only joins others (no type); a copy over a link.

    before are the places, in the list of tasks, of what it needs; of these, waits give it nothing.
    gap is what passed from the moment when all was there, on a GPU also the GPU, to its start.

    A collective is two tasks on each of its devices: one without length and bytes when the device
    comes, and the work, which needs those of all devices. In both, together is how many they are.
    """

    before: tuple[int, ...] = ()
    waits: frozenset[int] = frozenset()
    gap: float = 0.0
    together: int = 0

    @property
    def in_order(self) -> bool:
        """Say whether its device does one thing at a time, as a GPU and a link do."""
        works = self.type and not self.together  # what only joins others takes no GPU
        return self.type == "copy" or bool(works) and self.device.startswith("/GPU")

    @property
    def untimed(self) -> bool:
        """Say whether it is a collective's work that no trace tells, such as NCCL's kernels."""
        return bool(self.together and self.bytes and not self.length)


def unknown(step: Trace) -> str:
    """Say why a trace does not tell what its step did; "" where it does."""
    if not step.ops:
        return "no operation was recorded in it"
    if step.launches_only:
        return (
            "TensorFlow recorded no kernels of the GPU, so the trace does not know how long they "
            "ran: see that libcupti is found and that no other profiler runs"
        )
    if len({op.name for op in step.ops}) < len(step.ops) or not _sorted(*_parts(step)[:2]):
        return "the step runs a loop, whose rounds the trace does not tell apart: unroll it"
    if step.length < SHORTEST:
        return (
            f"it took {step.length * 1e3:.3g} ms, and in a step under {SHORTEST * 1e3:.0f} ms what "
            "TensorFlow does between operations counts as much as they do: take a larger batch"
        )
    return ""


def tasks_of(step: Trace) -> list[Task]:
    """List what a step did, each after all that it needs; raise ValueError where none can know."""
    if why := unknown(step):
        raise ValueError(f"this step cannot be replayed: {why}.")
    ran, edges, only = _parts(step)
    names, groups = _sorted(ran, edges), met(step)
    place = {name: i for i, name in enumerate(names)}
    before, waits = defaultdict(set), defaultdict(set)
    for maker, user in edges:
        before[user].add(place[maker])
    for maker, user in only:
        waits[user].add(place[maker])
    free: dict[str, float] = defaultdict(float)
    tasks: list[Task] = []
    for name in names:
        needs = tuple(sorted(before[name]))
        ready = max((tasks[j].end for j in needs), default=0.0)
        op = ran.get(name) or Op(name, "", tasks[needs[0]].device if needs else "", ready, 0.0)
        task = Task(**vars(op), before=needs, waits=frozenset(waits[name]),
                    together=len(groups.get(op.name, ())))  # fmt: skip
        if task.in_order:
            ready = max(ready, free[op.device])
            free[op.device] = max(free[op.device], task.end)
        tasks.append(replace(task, gap=max(0.0, op.start - ready)))
    return tasks


def users_of(tasks: Sequence[Task]) -> dict[int, list[int]]:
    """List by a task's place the places of those that need it."""
    users: dict[int, list[int]] = defaultdict(list)
    for i, task in enumerate(tasks):
        for j in task.before:
            users[j].append(i)
    return users


def met(step: Trace) -> dict[str, list[Collective]]:
    """Give the group of each collective that has one, by its name."""
    groups: dict[int, list[Collective]] = defaultdict(list)
    for each in step.collectives:
        if each.group is not None:
            groups[each.group].append(each)
    return {each.op: members for members in groups.values() for each in members}


def apart(step: Trace) -> str:
    """Name the collectives of which the trace does not tell who belongs together; "" if it does."""
    alone = {each.op for each in step.collectives if each.group is None}
    return ", ".join(sorted({op.type for op in step.ops if op.name in alone}))


def on_cpu_threads(step: Trace) -> list[Op]:
    """List what the threads of CPUs ran; a collective keeps none, neither waiting nor working."""
    own = {each.op for each in step.collectives}
    return [op for op in step.ops if op.device.startswith("/CPU") and op.name not in own]


def threads_of(step: Trace) -> int:
    """Count how many operations CPUs ran at once, at most: so many threads worked."""
    return max(1, len(lanes(on_cpu_threads(step))))


def _parts(step: Trace) -> tuple[dict[str, Op], list[tuple[str, str]], list[tuple[str, str]]]:
    """Give the operations by name, who needs whom, and who only waits.

    Each collective that has a group is in two, as `Task` says.
    """
    ran, groups = {op.name: op for op in step.ops}, met(step)
    comes = {name: f"{name} comes" for name in groups}

    def to(edges: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
        return [(maker, comes.get(user, user)) for maker, user in edges]

    meetings = [
        (comes[other.op], name) for name, members in groups.items() for other in members
    ]  # fmt: skip
    for name, members in groups.items():
        op, last = ran[name], max(each.start for each in members)
        ran[comes[name]] = replace(op, length=0.0, bytes=0)
        ran[name] = replace(op, start=last, length=max(0.0, op.end - last))
    return ran, to(step.edges) + meetings, to(step.waits) + meetings


def _sorted(ran: Mapping[str, Op], edges: Iterable[tuple[str, str]]) -> list[str]:
    """List the names after all that they need, else by their start; [] if some are in a circle."""
    order_of: TopologicalSorter[str] = TopologicalSorter({name: () for name in ran})
    for maker, user in edges:
        order_of.add(user, maker)
    try:
        order_of.prepare()
    except CycleError:
        return []
    heap: list[tuple[float, str]] = []
    names, moment = [], 0.0
    while order_of.is_active():
        for name in order_of.get_ready():  # a node that only joins others starts with the last
            heapq.heappush(heap, (ran[name].start if name in ran else moment, name))
        moment, name = heapq.heappop(heap)
        order_of.done(name)
        names.append(name)
    return names
