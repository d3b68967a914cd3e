"""The checks of lesson 22's exercises."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from mgpu_helpers.lessons.checks.judge import same_as

Failures = list[int]
Ends = list[tuple[float, int, int | None]]


def _trainings() -> Iterator[tuple[int, int, Failures]]:
    draw = np.random.default_rng()
    yield from [(20, 5, [7]), (20, 5, []), (24, 8, [10, 18]), (23, 5, [10, 22])]
    yield 30, 10, [3, 9, 9]
    for _ in range(5):
        every, failures, kept = int(draw.integers(2, 30)), [], 0
        total = int(draw.integers(200, 400))
        for _ in range(int(draw.integers(1, 5))):
            failures.append(int(draw.integers(kept, total)))
            kept = failures[-1] // every * every
        yield total, every, failures


def _computed(total: int, every: int, failures: Failures, backups: bool = True) -> int:
    done = kept = 0
    for step in failures:
        done += step - kept
        kept = step // every * every if backups else 0
    return done + total - kept


#: Check exercise 1 of lesson 22: how many steps all attempts compute together.
computed = same_as(
    _computed,
    _trainings,
    told=lambda right, got, total, every, failures: (
        f"{total} steps, a backup after every {every}, failures at {failures}: {right} steps are "
        f"computed, not {got:g}"
    ),
    way="return a number of steps",
    wrong={
        "an attempt begins at the last backup, not at the beginning":
            lambda total, every, failures: _computed(total, every, failures, backups=False),
        "what came after the last backup is computed again":
            lambda total, every, failures: total,
        "count what all attempts do, not only what they repeat":
            lambda total, every, failures: _computed(total, every, failures) - total,
        "each failure repeats the steps since the last backup, not all from one to the next":
            lambda total, every, failures: total + every * len(failures),
        "a failure at the beginning of a step comes after the step before":
            lambda total, every, failures: _computed(total, every, failures) + len(failures),
        "every failure counts, not only one":
            lambda total, every, failures: _computed(total, every, failures[-1:]),
        "an attempt may fail at the same step as the one before it":
            lambda total, every, failures: _computed(total, every, sorted(set(failures))),
        "a failure right after a backup repeats nothing":
            lambda total, every, failures: total + sum(step % every or every for step in failures),
    },
    changed="leave the list as it is",
    yes="10 trainings, with and without failures",
)


def _clusters() -> Iterator[tuple[Ends]]:
    yield ([(5.0, 1, None), (5.3, -9, None)],)  # by the launcher
    yield ([(4.0, 0, None), (6.2, -9, None), (6.0, 3, None)],)  # one may end well before
    yield ([(5.2, -9, None), (5.0, 1, 0)],)  # a large process takes a while to die
    yield ([(9.0, 1, 1), (2.0, 0, None)],)  # or well, but too early for the others
    yield ([(7.1, 1, 2), (7.3, -9, None), (7.2, 1, 1), (7.4, 1, 0)],)
    yield ([(5.0, -9, None), (5.1, 1, None)],)  # by the kernel
    yield ([(2.0, 1, 2), (3.0, 1, None), (3.5, -6, None), (1.0, 0, None)],)
    draw = np.random.default_rng()
    for n in (5, 8):
        order = [int(each) for each in draw.permutation(n)]  # each lost the one before it
        at = [round(float(each), 1) for each in draw.uniform(10, 99, n)]
        at[order[-1]] = 1.0  # so all of them have to be followed
        ends: Ends = [(second, 1, None) for second in at]
        for before, after in zip(order, order[1:], strict=False):
            ends[after] = (at[after], 1, before)
        yield (ends,)


def _earliest(ends: Ends, failed: Callable[[int], bool] = bool) -> int:
    """Find who ended first of those whose status is one of a failure."""
    return min((i for i, end in enumerate(ends) if failed(end[1])), key=lambda i: ends[i][0])


def _first(
    ends: Ends, failed: Callable[[int], bool] = bool, most: int = 99, done: bool = True
) -> int:
    """Follow who lost whom, so often at most; `done`: also to one that ended with status 0."""
    worker = _earliest(ends, failed)
    while most and (lost := ends[worker][2]) is not None and (done or ends[lost][1]):
        worker, most = lost, most - 1
    return worker


def _silent(ends: Ends) -> int:
    silent = [i for i, (_, status, lost) in enumerate(ends) if status and lost is None]
    return min(silent, key=lambda index: ends[index][0], default=-1)


#: Check exercise 2 of lesson 22: which worker's log to read.
first = same_as(
    _first,
    _clusters,
    told=lambda right, got, ends: f"of {ends} it is worker {right}, not {got:g}",
    way="return the number of a worker",
    wrong={
        "a worker that was lost may have ended with status 0":
            lambda ends: _first(ends, done=False),
        "the earliest to fail may have lost another": _earliest,
        "begin with the earliest to fail, not with the first in the list":
            lambda ends: next(index for index, (_, status, _) in enumerate(ends) if status),
        "the launcher ends the others by a signal, too":
            lambda ends: min(range(len(ends)), key=lambda index: ends[index][1]),
        "a status below 0 is a failure, too: a signal ended it":
            lambda ends: _first(ends, lambda status: status > 0),
        "who ended with status 0 first was done": lambda ends: _earliest(ends, lambda _: True),
        "the one that was lost may have lost another itself": lambda ends: _first(ends, most=1),
        "a worker whose log names no other may have been ended by the launcher": _silent,
    },
    changed="leave the list as it is",
    yes="9 clusters",
)
