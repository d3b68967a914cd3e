"""The tasks of a step after a change: of another batch, in towers, with copies over a link."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

from mgpu_helpers._names import order
from mgpu_helpers.trace.layers import layer
from mgpu_helpers.whatif.model import CHEAP
from mgpu_helpers.whatif.work import Task, users_of

# What is done once whatever the batch is, and what may be done to a gradient on its way there.
_ONCE = re.compile(
    r"Apply[A-Z]|^Assign|^VarHandleOp|ReadVariableOp|^Variable|AllReduce|^CollectiveReduce"
)
_EACH = re.compile(
    r"^(|Const|Identity|Cast|Reshape|ConcatV2|Add|AddV2|AddN|Sub|Mul|Neg|RealDiv|Square|R?sqrt"
    r"|L2Loss)$",
    re.IGNORECASE,
)


def scaled_by(tasks: list[Task], batch: float) -> list[Task]:
    """Give the tasks for so many times the batch: what is done once stays as it is."""
    once = _once(tasks)
    fixed = once | {j for i in once for j in tasks[i].before}  # a gradient is as large as ever
    return [
        task if i in once else replace(
            task, length=min(task.length, CHEAP) + batch * max(0.0, task.length - CHEAP),
            bytes=task.bytes if i in fixed else round(batch * task.bytes),
        ) for i, task in enumerate(tasks)
    ]  # fmt: skip


def _once(tasks: list[Task]) -> set[int]:
    """Find what is done once, whatever the batch: variables, updates, and what only leads there."""
    users, found = users_of(tasks), set[int]()
    for i in reversed(range(len(tasks))):
        task = tasks[i]
        if _ONCE.search(task.type) or layer(task.name) == "optimizer" or (
            _EACH.match(task.type) and users[i] and found.issuperset(users[i])
        ):  # fmt: skip
            found.add(i)
    return found


def in_towers(tasks: list[Task], home: str, n: int, share: float, adding: float) -> list[Task]:
    """Give the tasks of n towers, an average of what each gives to what is done once, and that.

    adding is how many bytes a second an average reads and writes.
    """
    kind, first = order(home)
    once, tasks = _once(tasks), scaled_by(tasks, share)
    made: list[Task] = []
    places: list[list[int]] = []  # of each task, in every tower; the same for what is done once
    means: dict[int, int] = {}

    def add(task: Task, device: str, before: list[int]) -> int:
        waits = {place for j in task.waits for place in places[j]}
        made.append(replace(
            task, device=device, before=tuple(before), waits=frozenset(waits & set(before))
        ))  # fmt: skip
        return len(made) - 1

    for i, task in enumerate(tasks):
        if i in once:
            before: set[int] = set()
            for j in task.before:
                if j in once or j in task.waits:
                    before.update(places[j])
                    continue
                if j not in means:
                    size, name = tasks[j].bytes, f"average of {tasks[j].name}"
                    mean = Task(name, "average", home, 0.0, (n + 2) * size / adding, size)
                    means[j] = add(mean, home, places[j])
                before.add(means[j])
            places.append([add(task, task.device, sorted(before))] * n)
            continue
        own = []
        for k in range(n):
            device = f"{kind}:{first + k}" if task.device == home else task.device
            own.append(add(task, device, sorted({places[j][k] for j in task.before})))
        places.append(own)
    return made


def over_link(
    tasks: list[Task], size_of: Callable[[Task, str], int], bytes_per_second: float
) -> list[Task]:
    """Put a copy between what made a tensor and those that use it on another device.

    And let what devices do together take as long as its bytes take in a ring.
    """
    made: list[Task] = []
    place: list[int] = []
    copies: dict[tuple[int, str], int] = {}
    for task in tasks:
        before = []
        for j in task.before:
            maker = tasks[j]
            size = 0 if maker.device == task.device or j in task.waits else (
                size_of(maker, task.device)
            )  # fmt: skip
            if size and (j, task.device) not in copies:
                copies[j, task.device] = len(made)
                made.append(Task(
                    f"{maker.name} to {task.device}", "copy", f"{maker.device} to {task.device}",
                    0.0, size / bytes_per_second, before=(place[j],),
                ))  # fmt: skip
            before.append(copies[j, task.device] if size else place[j])
        crossed = any(made[j].type == "copy" for j in before)
        crossed = crossed or any(tasks[j].untimed for j in task.before)
        taken = task.length
        if task.together:
            taken = _ring(task) / bytes_per_second + ("/CPU" in task.device) * taken
        place.append(len(made))
        made.append(replace(
            task, before=tuple(before), waits=frozenset(place[j] for j in task.waits),
            length=taken, gap=0.0 if crossed else task.gap,
        ))  # fmt: skip
    return made


def _ring(task: Task) -> float:
    """Give how many bytes a device sends to the next one; task.bytes is what it has at the end."""
    n = task.together
    parts = n if "Scatter" in task.type else 2 if "Reduce" in task.type else 1
    return parts * (n - 1) / n * task.bytes
