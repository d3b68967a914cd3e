"""The checks of lesson 13's exercises."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from mgpu_helpers._formatting import counted
from mgpu_helpers.lessons import schedules
from mgpu_helpers.lessons.checks.judge import NotYet, call, exercise, expect, listed, same_as


@exercise
def two_at_most(function: Any) -> str:
    """Check exercise 1 of lesson 13: an order in which no stage holds more than two pieces."""
    drawn = (int(n) for n in np.random.default_rng().integers(2, 8, 2))
    for stages, pieces in ((2, 3), (3, 4), (4, 6), (3, 1), tuple(drawn)):
        said = f"with {counted(stages, 'stage')} and {counted(pieces, 'piece')}"
        way = f"{said}, give each stage a list of its tasks"
        schedule = [listed(steps, way) for steps in listed(call(function, stages, pieces), way)]
        try:
            found = schedules.check(schedule)
        except ValueError as error:
            raise NotYet(f"{said}, {error}") from error
        own = f"{counted(len(schedule), 'stage')} and {counted(found, 'piece')}"
        fits = (len(schedule), found) == (stages, pieces)
        expect(fits, f"{said}, this is an order for {own}")
        for stage, steps in enumerate(schedule):
            held = np.cumsum([1 if step[0] == "F" else -1 for step in steps]).max()
            expect(held <= 2, f"{said}, stage {stage} holds {held} pieces at once")
        columns = max(end for _, end in schedules.run_times(schedule).values())
        faster = pieces == 1 or columns < 2 * stages * pieces
        expect(faster, f"{said} it takes as long as one piece after the other")
    return "never more than two pieces, and faster than one after the other"


def _trainings() -> Iterator[tuple[int, int, int]]:
    yield from [(3, 420, 35), (2, 96, 20), (4, 11, 30), (2, 60, 33), (2, 5, 50), (8, 20, 10)]
    yield (1, 7, 5)
    random = np.random.default_rng()
    for _ in range(5):
        stages, percent = random.integers(2, 9), random.choice([5, 10, 20, 25, 40, 50])
        yield int(stages), int(random.integers(1, 200)), int(percent)


def _fewest(
    stages: int, batch: int, percent: int, *, least: int = 1, even: bool = True,
    small: Callable[[int, int, int], bool] = lambda idle, all_of, percent: (
        100 * idle <= percent * all_of
    ),
) -> int:  # fmt: skip
    for pieces in range(least, batch + 1):
        if small(stages - 1, pieces + stages - 1, percent) and not (even and batch % pieces):
            return pieces
    return 0


def _bubble(right: int, got: Any, stages: int, batch: int, percent: int) -> str:
    given = f"with {counted(stages, 'stage')} and a batch of {batch}"
    wanted = f"{right} is the fewest" if right else "there is no such number"
    return f"{given}, for a bubble of at most {percent} %, {wanted}, not {got:g}"


#: Check exercise 2 of lesson 13: the fewest even pieces for a bubble, of batches that it draws.
fewest = same_as(
    _fewest,
    _trainings,
    told=_bubble,
    way="one whole number of pieces",
    wrong={
        "pieces of equal size divide the batch": lambda *all_of: _fewest(*all_of, even=False),
        "one piece, too, can be enough": lambda *all_of: _fewest(*all_of, least=2),
        "a piece can be a single example":
            lambda stages, batch, percent: _fewest(stages, batch, percent) % batch,
        "a share that is rounded to whole percent can be too large":
            lambda *all_of: _fewest(*all_of, small=lambda idle, n, most: 100 * idle // n <= most),
        "the bubble of p stages has p - 1 of its columns, not p":
            lambda *all_of: _fewest(
                *all_of, small=lambda idle, n, most: 100 * (idle + 1) <= most * n),
        "a bubble of just so many percent is small enough":
            lambda *all_of: _fewest(*all_of, small=lambda idle, n, most: 100 * idle < most * n),
        "the share is of all columns, working and waiting":
            lambda *all_of: _fewest(
                *all_of, small=lambda idle, n, most: 100 * idle <= most * (n - idle)),
        "each example alone has the smallest bubble: fewer may do":
            lambda stages, batch, percent: batch,
        "return the number of pieces, not of the examples in one":
            lambda stages, batch, percent: batch // (_fewest(stages, batch, percent) or batch + 1),
    },
    unknown="the bubble is a share of (p - 1)/(m + p - 1)",
    yes="right for twelve trainings, five of them drawn at random",
)  # fmt: skip
