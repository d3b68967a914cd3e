"""The checks of lesson 15's exercises."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from mgpu_helpers.lessons.checks.judge import call, exercise, expect, listed, same_as

SUMS = ((2_097_152, 10_086_480), (16_777_216, 10_127_440), (3, 5), (5, 3))


@exercise
def in_order(function: Any) -> str:
    """Check exercise 1 of lesson 15: four devices in the order that serves the larger sum."""
    for order in ((0, 1, 2, 3), (0, 2, 1, 3)):
        names = [f"/GPU:{i}" for i in order]
        for within, between in SUMS:
            pairs = [(names[0], names[1]), (names[2], names[3])]
            got = listed(call(function, pairs, within, between), "a list of four devices")
            expect(len(got) == 4,
                   f"the list has {len(got)} entries, not four: fit.use takes one list of devices, "
                   "the first row and then the second")
            flat = all(isinstance(one, str) for one in got)
            expect(flat and sorted(got) == sorted(names),
                   f"each of {', '.join(names)} stands in the list once; it has {got}")
            rows = {frozenset(got[:2]), frozenset(got[2:])}
            columns = {frozenset(got[::2]), frozenset(got[1::2])}
            fast = {frozenset(pair) for pair in pairs}
            case = f"with the pairs {pairs}, {within:,} bytes within rows and {between:,} between"
            expect(fast in (rows, columns),
                   f"{case}, your list puts the devices of a pair neither into one row nor into "
                   "one column: a row is two neighbours, and a column every second device")
            expect(fast == (rows if within > between else columns),
                   f"{case}, the fast links have to be "
                   + ("within the rows, and in your list they are between them: a row is two "
                   "neighbours of the list" if within > between else
                   "between the rows, and in your list they are within them: a column is every "
                   "second device of the list"))
    return "the larger sum crosses the fast links, for two servers and four sums"


def _steps() -> Iterator[tuple[int, int, int, int]]:
    yield 100, 8, 12, 4
    yield 5_022_760, 1024, 1024, 2
    yield 100, 8, 12, 1
    rng = np.random.default_rng()
    for _ in range(5):
        weights, cut, batch = (int(one) for one in rng.integers(2, 1000, 3))
        yield weights, cut, 12 * batch, int(rng.integers(2, 5))


def _crossing(
    weights: int, cut: int, batch: int, rows: int, *, within: float = 2, between: float = 2
) -> tuple[float, float]:
    return within * batch * cut, between * weights * (rows - 1)


#: Check exercise 2 of lesson 15: the bytes within rows and between them, of models that it draws.
crossing = same_as(
    _crossing,
    _steps,
    told=lambda right, got, weights, cut, batch, rows: (
        f"with {weights} bytes of weights, {cut} at the cut, a batch of {batch} and {rows} rows, "
        f"{right[0]} bytes cross within rows and {right[1]} between them, not "
        + " and ".join(f"{one:.10g}" for one in np.ravel(got))
    ),
    way="two numbers of bytes",
    wrong={
        "the gradients of the activations come back": lambda *step: _crossing(*step, within=1),
        "the gradients of the weights come back": lambda *step: _crossing(*step, between=1),
        "what is read comes back as gradients, within rows and between them":
            lambda *step: _crossing(*step, within=1, between=1),
        "the first row has the weights, and reads nothing":
            lambda weights, cut, batch, rows: _crossing(weights, cut, batch, rows + 1),
        "each further row reads all weights":
            lambda weights, cut, batch, rows: _crossing(weights, cut, batch, 2),
        "the rows share the batch, so each example crosses in one of them":
            lambda weights, cut, batch, rows: _crossing(weights, cut, batch * rows, rows),
        "count all rows, not one of them":
            lambda *step: _crossing(*step, within=2 / step[-1]),
        "first within rows, then between them": lambda *step: _crossing(*step)[::-1],
    },
    unknown="along a row go activations and their gradients, between rows weights and theirs",
    yes="right for eight models, five of them drawn at random",
)  # fmt: skip
