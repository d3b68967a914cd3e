"""In which order each stage does its tasks: plain lists, checked and laid out in time.

A schedule lists the tasks of each stage, in order: "F0" takes piece 0 forward, "B0" takes it back.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any


def one_by_one(stages: int, pieces: int) -> list[list[str]]:
    """Let each piece go forward and back before the next one starts.

    >>> one_by_one(stages=2, pieces=2)
    [['F0', 'B0', 'F1', 'B1'], ['F0', 'B0', 'F1', 'B1']]
    """
    return [[f"{kind}{k}" for k in range(pieces) for kind in "FB"] for _ in range(stages)]


def all_forward(stages: int, pieces: int) -> list[list[str]]:
    """Let all pieces go forward, then all back.

    >>> all_forward(stages=1, pieces=2)
    [['F0', 'F1', 'B0', 'B1']]
    """
    return [[f"{kind}{k}" for kind in "FB" for k in range(pieces)] for _ in range(stages)]


def one_forward_one_backward(stages: int, pieces: int) -> list[list[str]]:
    """Let a stage fill the ones behind it, then go back with one piece for each that goes forward.

    Stage s of p never holds more than p - s pieces.

    >>> one_forward_one_backward(stages=2, pieces=2)
    [['F0', 'F1', 'B0', 'B1'], ['F0', 'B0', 'F1', 'B1']]
    """
    schedule = []
    for stage in range(stages):
        ahead = min(pieces, stages - stage)
        tasks = [f"F{k}" for k in range(ahead)]
        for k in range(pieces):
            tasks += [f"B{k}", f"F{k + ahead}"] if k + ahead < pieces else [f"B{k}"]
        schedule.append(tasks)
    return schedule


def run_times(
    schedule: Sequence[Sequence[str]],
    forward: Sequence[float] | None = None,
    backward: Sequence[float] | None = None,
    devices: Sequence[Any] | None = None,
) -> dict[tuple[int, str], tuple[float, float]]:
    """Give when each task of each stage starts and ends, by (stage, task), in the order they start.

    forward and backward are what a task of each stage takes, in any unit (None: 1 each, which
    suffices for the order). A device does one task after another; where stages share one, `devices`
    says so. A schedule that cannot run raises ValueError, which names a task.

    >>> run_times([["F0", "B0"], ["F0", "B0"]])[1, "B0"]
    (2.0, 3.0)
    """
    p, pieces = len(schedule), len({str(task)[1:] for tasks in schedule for task in tasks})
    every = [f"{kind}{k}" for kind in "FB" for k in range(pieces)]
    for s, tasks in enumerate(schedule):
        if not every or sorted(tasks) != sorted(every):
            raise ValueError(
                f"stage {s} does {' '.join(map(str, tasks)) or 'nothing'}: let every stage do F "
                f"and B of every piece once, such as {' '.join(every) or 'F0 B0'}."
            )
    unit = [1.0] * p
    cost = {"F": forward or unit, "B": backward or unit}
    where = range(p) if devices is None else devices
    free: dict[Any, float] = defaultdict(float)
    at = [0] * p
    spans: dict[tuple[int, str], tuple[float, float]] = {}
    while len(spans) < 2 * p * pieces:
        ready, stuck = [], []
        for s, tasks in enumerate(schedule):
            if at[s] < len(tasks):
                needed = _needs(s, tasks[at[s]], p)
                if missing := [n for n in needed if n not in spans]:
                    stuck.append((s, tasks[at[s]], *missing[0]))
                    continue
                start = max([free[where[s]], *(spans[n][1] for n in needed)])
                # Of two that could start on a device, what goes back first sets memory free.
                ready.append((start, tasks[at[s]][0], s))
        if not ready:  # of several, the one that waits for itself: the others wait for it
            s, task, stage, other = min(stuck, key=lambda one: one[0] != one[2])
            raise ValueError(
                f"stage {s} cannot do {task} as its task {at[s] + 1}: it needs {other} of stage "
                f"{stage}, which in this order cannot run before it."
            )
        start, _, s = min(ready)
        task = schedule[s][at[s]]
        spans[s, task] = start, start + cost[task[0]][s]
        free[where[s]] = spans[s, task][1]
        at[s] += 1
    return spans


def _needs(stage: int, task: str, stages: int) -> list[tuple[int, str]]:
    """List what has to be done before a task."""
    if task[0] == "F":
        return [(stage - 1, task)] if stage else []
    later = [(stage + 1, task)] if stage + 1 < stages else []
    return [(stage, "F" + task[1:]), *later]
