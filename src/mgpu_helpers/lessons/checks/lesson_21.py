"""The checks of lesson 21's exercises."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from mgpu_helpers._formatting import counted
from mgpu_helpers.lessons.checks.judge import call, exercise, expect, listed, numbers, same_as


@exercise
def rows_of(function: Any) -> str:
    """Check exercise 1 of lesson 21: which rows of a batch each worker reads."""
    draw = np.random.default_rng()
    cases = [(24, 2), (10, 3), (7, 4), (2, 3), (48, 1)]
    cases += [(int(draw.integers(20, 400)), int(draw.integers(2, 20))) for _ in range(5)]
    for count, workers in cases:
        of = f"{count} rows and {counted(workers, 'worker')}"
        shards = [_rows(function, count, workers, index) for index in range(workers)]
        for index in reversed(range(workers)):  # each worker is a process and asks for itself
            again = _rows(function, count, workers, index)
            expect(again == shards[index], f"with {of} worker {index} gets other rows when it asks "
                   "a second time: let them follow from count, workers and index alone")
        times = Counter(row for shard in shards for row in shard)
        for row in times:
            here = 0 <= row < count
            expect(here, f"with {of} somebody reads row {row}, which is not there")
        for row in range(count):
            expect(times[row] <= 1, f"with {of} row {row} is read {times[row]} times")
        for row in range(count):
            expect(times[row], f"with {of} nobody reads row {row}")
        sizes = [len(shard) for shard in shards]
        least, most = min(sizes), max(sizes)
        expect(most - least <= 1,
               f"with {of} one reads {most} and another {least}: the others wait for the one with "
               "most, so let the workers differ by one row at most")
    return f"{len(cases)} counts of rows and workers, each row read once"


def _rows(function: Any, *args: int) -> list[int]:
    got = listed(call(function, *args), "return the numbers of the rows")
    if got:
        for row in numbers(got, (len(got),), "return a flat list of the rows' numbers"):
            expect(float(row).is_integer(), f"the numbers of rows are whole, not {row}")
    return [int(row) for row in got]


def _links() -> list[tuple[int, int, float, float]]:
    draw, five = np.random.default_rng(), 5_000_000  # bytes are whole numbers
    size, megabits, unlimited = draw.uniform([1e6, 20, 0.1], [9e8, 900, 1]).tolist()
    drawn = round(size), int(draw.integers(4, 40)), megabits, unlimited
    return [(five, 2, 200.0, 0.0), (five, 2, 50.0, 0.016), (five, 3, 200.0, 0.033), drawn]


def _ring(size: int, n: int, megabits: float, unlimited: float) -> float:
    """Give the seconds of a ring's all-reduce over a link that TCP fills to 95.6 %."""
    return 2 * (n - 1) / n * size / (megabits * 1e6 / 8) / 0.956 + unlimited


#: Check exercise 2 of lesson 21: the time of an all-reduce over a slow link.
reduce_seconds = same_as(
    _ring,
    _links,
    told=lambda right, got, size, workers, megabits, unlimited: (
        f"{size / 1e6:.0f} MB, {workers} workers, {megabits:.0f} Mbit/s and {unlimited:.3g} s "
        f"for copying and adding take {right:.4g} s, not {got:.4g}"
    ),
    way="return a number of seconds",
    wrong={
        "in a ring each worker sends 2(n - 1)/n of the gradients, not 2(n - 1) times all":
            lambda size, n, rate, free: _ring(size * n, n, rate, free),
        "the ring goes round twice: once to add the pieces up, once to hand out the sums":
            lambda size, n, rate, free: _ring(size / 2, n, rate, free),
        "the share 2(n - 1)/n of the gradients is 1 only for 2 workers":
            lambda size, n, rate, free: _ring(size, 2, rate, free),
        "leave the seconds unrounded":
            lambda size, n, rate, free: round(_ring(size, n, rate, free), 3),
        "Mbit/s are a million bits in a second":
            lambda size, n, rate, free: _ring(size, n, rate / 1e6, free),
        "the time for copying and adding is given: leave it as it is":
            lambda size, n, rate, free: _ring(size, n, rate, free / 0.956),
        "a byte has 8 bits": lambda size, n, rate, free: _ring(size / 8, n, rate, free),
        "a megabit is an eighth of a megabyte":
            lambda size, n, rate, free: _ring(size * 8, n, rate, free),
        "return seconds": lambda size, n, rate, free: _ring(size * 1000, n, rate, free),
        "a megabit is a million bits":
            lambda size, n, rate, free: _ring(size, n, rate * 1.048576, free),
        "TCP carries 95.6 % of the rate":
            lambda size, n, rate, free: _ring(size, n, rate / 0.956, free),
        "less gets through than the rate, so it takes longer":
            lambda size, n, rate, free: _ring(size, n, rate / 0.956**2, free),
        "the time for copying and adding comes on top":
            lambda size, n, rate, free: _ring(size, n, rate, 0.0),
    },
    yes="4 links; 5 MB on 2 workers at 200 Mbit/s take 0.21 s and the unlimited time",
)
