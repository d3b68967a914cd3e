"""The checks of lesson 17's exercises."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from mgpu_helpers._formatting import counted
from mgpu_helpers.lessons.checks.judge import same_as


def _queues() -> Iterator[tuple[list[float], int]]:
    draw = np.random.default_rng()
    known: list[tuple[list[float], int]] = [
        ([3, 8, 8, 1, 9], 2), ([6, 1, 1, 4, 9], 2),  # each mistake below makes another number
        ([3], 2), ([5, 1, 1, 1], 2), ([1, 2, 3, 4], 1), ([4, 3, 3, 2, 2], 3),
        ([2.5, 2, 0.75, 1.5], 2),
    ]
    yield from known
    for n in (1, 2, 3, 4, 5, 7, 1, 2, 3, 4, 5, 7):
        yield draw.integers(1, 20, draw.integers(n, 4 * n + 3)).tolist(), n


def _ends(seconds: list[float], n: int) -> list[float]:
    ends = [0.0] * n
    for length in seconds:
        heapq.heapreplace(ends, ends[0] + length)
    return ends


def _wall(seconds: list[float], n: int) -> float:
    return max(_ends(seconds, n))


def _last_end(seconds: list[float], n: int) -> float:
    return min(_ends(seconds[:-1], n)) + seconds[-1]


def _in_groups(seconds: list[float], n: int) -> float:
    return sum(max(seconds[at : at + n]) for at in range(0, len(seconds), n))


def _in_pieces(seconds: list[float], n: int) -> float:
    size = -(-len(seconds) // n)
    return max(sum(seconds[at : at + size]) for at in range(0, len(seconds), size))


#: Check exercise 1 of lesson 17: how long a sweep takes that keeps its order.
wall = same_as(
    _wall,
    _queues,
    told=lambda right, got, seconds, n: (
        f"{seconds} on {counted(n, 'device')} take {right:g}, not {got:g}"
    ),
    way="return a number of seconds",
    wrong={
        "that is shared out evenly: a job cannot be cut in two":
            lambda seconds, n: sum(seconds) / n,
        "that is shared out evenly and rounded up: a job cannot be cut in two":
            lambda seconds, n: -(-sum(seconds) // n),
        "that deals the jobs out in turn, also to a device that is still busy":
            lambda seconds, n: max(sum(seconds[i::n]) for i in range(n)),
        "that waits for all devices before it starts the next jobs": _in_groups,
        "that cuts the list into as many pieces as there are devices": _in_pieces,
        "that starts the longest first: keep the order of the list":
            lambda seconds, n: _wall(sorted(seconds, reverse=True), n),
        "that starts the shortest first: keep the order of the list":
            lambda seconds, n: _wall(sorted(seconds), n),
        "that starts the last first: keep the order of the list":
            lambda seconds, n: _wall(seconds[::-1], n),
        "that uses one device": lambda seconds, n: sum(seconds),
        "that is the longest job alone, and a device may have several":
            lambda seconds, n: max(seconds),
        "that is when the last job of the list ends, and an earlier one may end later": _last_end,
        "that is when the first device has nothing left, and the sweep ends with the last":
            lambda seconds, n: min(_ends(seconds, n)),
    },
    unknown="in their order, each takes the first device that is free",
    changed="it changed the list of seconds that it was given: work on a copy",
    yes="right for 19 queues",
)

Rows = list[dict[str, Any]]


def _sweeps() -> Iterator[tuple[list[str], Rows]]:
    def rows(*ends: str) -> Rows:
        return [dict(zip(("name", "status"), end.split(":"), strict=True)) for end in ends]

    yield ["a", "b", "c"], rows("b:done", "a:failed", "a:done")
    yield ["a", "b"], []
    yield ["b", "a"], rows("a:timed out", "x:done")
    yield ["a"], rows("a:done", "a:failed")
    draw = np.random.default_rng()
    for _ in range(12):
        ends = ["done", "failed", "timed out", "stopped"]
        names = [f"lr={lr}" for lr in draw.permutation(12)[: draw.integers(3, 12)]]
        pairs = zip(draw.choice(names, 14), draw.choice(ends, 14), strict=True)
        yield names, rows(*(f"{name}:{end}" for name, end in pairs))


def _chosen(names: list[str], rows: Rows, *, right: Callable[[list[str]], bool]) -> list[str]:
    """List the names whose statuses, the newest last, are right."""
    return [each for each in names if right([r["status"] for r in rows if r["name"] == each])]


def _again(names: list[str], rows: Rows) -> list[str]:
    return _chosen(names, rows, right=lambda its: its[-1:] != ["done"])


def _shown(rows: Rows) -> str:
    return ", ".join(f"{row['name']} {row['status']}" for row in rows) or "no rows"


#: Check exercise 2 of lesson 17: which jobs a sweep has to run again.
again = same_as(
    _again,
    _sweeps,
    told=lambda right, got, names, rows: (
        f"of {names} after {_shown(rows)} these are left: {right}, not {got}"
    ),
    wrong={
        "go through the names: a job has several rows, of which the newest counts, or one, or none":
            lambda names, rows: [row["name"] for row in rows if row["status"] != "done"],
        "a job without a row has never ended, and has to run, too":
            lambda *sweep: _chosen(*sweep, right=lambda its: bool(its) and its[-1] != "done"),
        "the newest row of a job counts, and here that one is not done":
            lambda *sweep: _chosen(*sweep, right=lambda its: "done" not in its),
        "the newest row of a job counts, and here that one is done":
            lambda *sweep: _chosen(*sweep, right=lambda its: {*its} != {"done"}),
        "only a job that is done is left out, and one may also have timed out or been stopped":
            lambda *sweep: _chosen(*sweep, right=lambda its: its[-1:] in ([], ["failed"])),
        "these have a row that says done":
            lambda *sweep: _chosen(*sweep, right=lambda its: "done" in its),
        "these are all jobs: leave out what is done": lambda names, rows: names,
        "keep the order in which the jobs were named":
            lambda names, rows: sorted(_again(names, rows)),
    },
    unknown="return a list of names, each once, in their order",
    changed="it changed what it was given: work on a copy",
    yes="right for 16 sweeps",
)
