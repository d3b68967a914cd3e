"""When each task of a step would run: on the threads of CPUs, and one at a time on a GPU."""

from __future__ import annotations

import heapq
import itertools
from collections import defaultdict, deque
from collections.abc import Sequence

from mgpu_helpers.whatif.machine import Machine
from mgpu_helpers.whatif.work import Task, users_of

CHEAP = 3e-6  # seconds; TensorFlow's executor runs what takes less itself, at 8,000 cycles


def in_order(tasks: Sequence[Task]) -> list[float]:
    """Give the end of each task where a device does one after the other, in the traced order.

    A task also waits as long as it did in the trace: for its launch, on a GPU.
    """
    ends: list[float] = []
    free: dict[str, float] = defaultdict(float)
    for task in tasks:
        ready = max((ends[j] for j in task.before), default=0.0)
        if task.in_order:
            ready = max(ready, free[task.device])
        ends.append(ready + task.gap + task.length)
        if task.in_order:
            free[task.device] = ends[-1]
    return ends


def on_threads(tasks: Sequence[Task], threads: int, machine: Machine) -> list[float]:
    """Give the end of each task where threads share the work, as TensorFlow's executor does.

    A thread goes on with what its operation made ready on the same device: cheap operations, and
    one other if none is. What is left, and what another device is to do, goes to the thread's own
    queue, and a sleeping thread wakes up for it. A thread takes the newest of its own queue, and
    else the oldest of another's. A tensor for another device costs two operations more, which the
    trace does not show: one sends it, one receives it.
    """
    missing, users = [len(task.before) for task in tasks], users_of(tasks)
    sent = [
        len({tasks[j].device for j in users[i]} - {task.device}) for i, task in enumerate(tasks)
    ]
    ends = [0.0] * len(tasks)
    free: dict[str, float] = defaultdict(float)
    queues = [deque[int]() for _ in range(threads)]
    inline = [deque[int]() for _ in range(threads)]
    asleep: list[int] = []
    count = itertools.count()
    events = [(0.0, next(count), k, -1) for k in range(threads)]  # moment, thread, what it ended
    for n, i in enumerate(i for i, left in enumerate(missing) if not left):
        queues[n % threads].append(i)

    def hand_over(i: int, k: int, now: float) -> None:
        queues[k].appendleft(i)
        if asleep:
            heapq.heappush(events, (now + machine.wake, next(count), asleep.pop(), -1))

    def ended(i: int, k: int, now: float) -> None:
        """Let thread k, or none (-1) where a copy has ended, start what waited for a task."""
        dear: list[int] = []
        for j in users[i]:
            missing[j] -= 1
            if missing[j]:
                continue
            if tasks[j].together:  # it waits and works without a thread of TensorFlow's executor
                heapq.heappush(events, (now + tasks[j].length, next(count), -1, j))
            elif tasks[j].type == "copy":
                link = tasks[j].device
                free[link] = max(free[link], now) + tasks[j].length
                heapq.heappush(events, (free[link], next(count), -1, j))
            elif k < 0 or tasks[j].device != tasks[i].device:
                hand_over(j, max(k, 0), now)
            elif tasks[j].length < CHEAP:
                inline[k].append(j)
            else:
                dear.append(j)
        if dear and not inline[k]:
            inline[k].append(dear.pop())
        for j in dear:
            hand_over(j, k, now)

    while events:
        now, _, k, i = heapq.heappop(events)
        if i >= 0:
            ends[i] = now
            ended(i, k, now)
        if k < 0:
            continue
        full = next((q for q in queues[k + 1 :] + queues[:k] if q), None)
        if inline[k]:
            i = inline[k].popleft()
        elif queues[k]:
            i = queues[k].popleft()
        elif full:
            i = full.pop()
        else:
            asleep.append(k)
            continue
        now += machine.operation * (1 + 2 * sent[i]) + tasks[i].length
        heapq.heappush(events, (now, next(count), k, i))
    return ends
