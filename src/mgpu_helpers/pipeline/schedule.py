"""In which order each stage does its tasks: plain lists, checked and laid out in time."""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from mgpu_helpers.wording import counted, whole_number

#: The tasks of each stage, in order: "F0" takes piece 0 forward, and "B0" takes it back.
Schedule = list[list[str]]


def one_by_one(stages: int, pieces: int) -> Schedule:
    """Let each piece go forward and back before the next one starts.

    >>> one_by_one(stages=2, pieces=2)
    [['F0', 'B0', 'F1', 'B1'], ['F0', 'B0', 'F1', 'B1']]
    """
    stages, pieces = _sizes(stages, pieces)
    return [[f"{kind}{k}" for k in range(pieces) for kind in "FB"] for _ in range(stages)]


def all_forward(stages: int, pieces: int) -> Schedule:
    """Let all pieces go forward, then all back.

    >>> all_forward(stages=1, pieces=2)
    [['F0', 'F1', 'B0', 'B1']]
    """
    stages, pieces = _sizes(stages, pieces)
    return [[f"{kind}{k}" for kind in "FB" for k in range(pieces)] for _ in range(stages)]


def one_forward_one_backward(stages: int, pieces: int) -> Schedule:
    """Let a stage fill the ones behind it, then go back with one piece for each that goes forward.

    Stage s of p never holds more than p - s pieces.

    >>> one_forward_one_backward(stages=2, pieces=2)
    [['F0', 'F1', 'B0', 'B1'], ['F0', 'B0', 'F1', 'B1']]
    """
    stages, pieces = _sizes(stages, pieces)
    schedule = []
    for stage in range(stages):
        ahead = min(pieces, stages - stage)
        tasks = [f"F{k}" for k in range(ahead)]
        for k in range(pieces):
            tasks += [f"B{k}", f"F{k + ahead}"] if k + ahead < pieces else [f"B{k}"]
        schedule.append(tasks)
    return schedule


def _sizes(stages: int, pieces: int) -> tuple[int, int]:
    return whole_number("stages", stages, "a number of stages", 1), whole_number(
        "pieces", pieces, "a number of micro-batches", 1
    )


def bubble(stages: int, pieces: int) -> float:
    """Give the share of the time, 0 to 1, in which a device waits, if all tasks take as long.

    >>> bubble(stages=2, pieces=4)
    0.2
    """
    stages, pieces = _sizes(stages, pieces)
    return (stages - 1) / (pieces + stages - 1)


def run_times(
    schedule: Sequence[Sequence[str]],
    forward: Sequence[float] | None = None,
    backward: Sequence[float] | None = None,
    devices: Sequence[str] | None = None,
) -> dict[tuple[int, str], tuple[float, float]]:
    """Give when each task of each stage starts and ends, by (stage, task), in the order they start.

    forward and backward are what a task of each stage takes, in any unit (None: 1 each, which
    suffices for the order). A device does one task after another; where stages share one, `devices`
    says so.

    >>> run_times([["F0", "B0"], ["F0", "B0"]])[1, "B0"]
    (2.0, 3.0)
    """
    pieces = check(schedule)
    p = len(schedule)
    for name, each in {"forward": forward, "backward": backward, "devices": devices}.items():
        if each is not None and len(each) != p:
            raise ValueError(
                f"{name} has {counted(len(each), 'value')} for {counted(p, 'stage')}: give one "
                "for each."
            )
    unit = [1.0] * p
    cost = {"F": unit if forward is None else forward, "B": unit if backward is None else backward}
    where = range(p) if devices is None else devices
    free: dict[Any, float] = defaultdict(float)
    at = [0] * p
    spans: dict[tuple[int, str], tuple[float, float]] = {}
    while len(spans) < 2 * p * pieces:
        ready = []
        for s, tasks in enumerate(schedule):
            if at[s] < len(tasks):
                needed = _needs(s, tasks[at[s]], p)
                if all(n in spans for n in needed):
                    start = max([free[where[s]], *(spans[n][1] for n in needed)])
                    # Of two that could start on a device, what goes back first sets memory free.
                    ready.append((start, tasks[at[s]][0], s))
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


def check(schedule: Sequence[Sequence[str]]) -> int:
    """Check that an order can run; give the number of its pieces. ValueError names a wrong task.

    >>> check([["F0", "F1", "B0", "B1"], ["F0", "B0", "F1", "B1"]])
    2
    """
    if not schedule or not all(schedule):
        empty = next((s for s, tasks in enumerate(schedule) if not tasks), 0)
        raise ValueError(f"stage {empty} has no tasks: give each stage its F and B of every piece.")
    each = itertools.chain(*schedule)
    if wrong := [task for task in each if not re.fullmatch(r"[FB](0|[1-9]\d*)", str(task))]:
        raise ValueError(f"{wrong[0]!r} is not a task: write F0 for piece 0 forward, B0 for back.")
    pieces = 1 + max(int(task[1:]) for tasks in schedule for task in tasks)
    for s, tasks in enumerate(schedule):
        for task in (f"{kind}{k}" for k in range(pieces) for kind in "FB"):
            if tasks.count(task) != 1:
                raise ValueError(
                    f"stage {s} has {task} {counted(tasks.count(task), 'time')}: "
                    "every stage does F and B of every piece once."
                )
    at = [0] * len(schedule)
    done: set[tuple[int, str]] = set()
    moved = True
    while moved:
        moved = False
        for s, tasks in enumerate(schedule):
            while at[s] < len(tasks) and done.issuperset(_needs(s, tasks[at[s]], len(schedule))):
                done.add((s, tasks[at[s]]))
                at[s] += 1
                moved = True
    stuck = [
        (s, tasks[at[s]], next(n for n in _needs(s, tasks[at[s]], len(schedule)) if n not in done))
        for s, tasks in enumerate(schedule)
        if at[s] < len(tasks)
    ]
    if stuck:  # of several, the one that waits for itself: the others wait for it
        s, task, (stage, missing) = min(stuck, key=lambda one: one[0] != one[2][0])
        raise ValueError(
            f"stage {s} cannot do {task} as its task {at[s] + 1}: it needs {missing} of stage "
            f"{stage}, which in this order cannot run before it."
        )
    return pieces


def table(schedule: Sequence[Sequence[str]], devices: Sequence[str] | None = None) -> str:
    """Write a schedule as a table: a line for each stage, a column for each unit of time.

    >>> print(table([["F0", "B0"], ["F0", "B0"]]))
    stage 0: F0 .  .  B0
    stage 1: .  F0 B0 .
    """
    spans = run_times(schedule, devices=devices)
    columns = round(max(end for _, end in spans.values()))
    cells = [["."] * columns for _ in schedule]
    for (stage, task), (start, _) in spans.items():
        cells[stage][round(start)] = task
    wide = max(len(task) for tasks in schedule for task in tasks)
    return "\n".join(
        f"stage {s}: " + " ".join(f"{cell:{wide}}" for cell in row).rstrip()
        for s, row in enumerate(cells)
    )
