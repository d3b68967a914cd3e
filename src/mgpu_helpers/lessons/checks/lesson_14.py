"""The checks of lesson 14's exercises."""

from __future__ import annotations

import gc
import tracemalloc
from typing import Any

import numpy as np

from mgpu_helpers._formatting import counted
from mgpu_helpers.lessons import schedules
from mgpu_helpers.lessons.checks.judge import NotYet, call, exercise, expect, listed, numbers


@exercise
def two_at_most(function: Any) -> str:
    """Check exercise 1 of lesson 14: an order in which no stage holds more than two pieces."""
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


@exercise
def accumulate(function: Any) -> str:
    """Check exercise 2 of lesson 14: gradients of pieces added up, weighted, few at a time."""
    sizes, draw = np.array([4, 3, 1, 2, 4, 2, 1, 3, 2, 4]), np.random.default_rng()
    more = np.append(sizes, draw.integers(1, 5, 3))  # another number of examples, too
    # The first is always the same, and so are its hints.
    for rng, each in ((np.random.default_rng(0), sizes), (draw, more)):
        _check_accumulated(function, rng.permutation(each), rng)
    return "right for pieces of 4, 3, 2 and 1, and never all gradients at once"


def _check_accumulated(function: Any, sizes: np.ndarray, rng: np.random.Generator) -> None:
    import tensorflow as tf

    count, most, largest, calls = int(sizes.sum()), 0.0, 0, 0
    x, y = rng.integers(-9, 10, count).astype(np.float32), np.full(count, 2, np.float32)
    length = 100_003  # of a gradient, so that whatever is made from one is known by it

    def gradient_of(x: Any, y: Any) -> Any:
        nonlocal most, largest, calls
        eager = tf.executing_eagerly()
        expect(eager, "inside a tf.function the check cannot count: leave it out")
        held: float = sum(_gradients_in(each, length) for each in gc.get_objects())
        held += tracemalloc.get_traced_memory()[0] / (4 * length)  # in arrays of NumPy, in lists
        most, largest, calls = max(most, 1 + held), max(largest, len(x)), calls + 1
        return tf.fill([length], tf.reduce_mean(tf.convert_to_tensor(x) * y))

    cuts = np.cumsum(sizes)[:-1]
    pieces = list(zip(np.split(x, cuts), np.split(y, cuts), strict=True))
    way = f"one gradient like those of gradient_of, of {length} numbers alike"
    gc.freeze()  # what there is by now is not counted
    tracemalloc.start()
    try:
        made = call(function, gradient_of, pieces)
    finally:
        tracemalloc.stop()
        gc.unfreeze()
    got = numbers(made, (length,), way)
    expect(not np.ptp(got), way)
    means, value, right = [2 * part.mean() for part in np.split(x, cuts)], got[0], 2 * x.mean()
    close = np.isclose(value, right, 1e-4, 1e-5)
    for wrong, hint in (
        (np.mean(means), "pieces of 4 and of 1 count the same: weigh each by its size"),
        (np.sum(means), "the gradients are added, and not divided"),
        (means[-1], "only the last piece is left: add"),
    ):
        expect(close or not np.isclose(value, wrong, 1e-4, 1e-5), hint)
    told = ", ".join(map(str, sizes))
    expect(close, f"pieces of {told} should give {right:.4f}, not {value:.4f}")
    expect(largest <= max(sizes),
           f"right, but one call had {largest} examples: a piece has 4 at most")
    pieces_at_once, n = min(most, len(sizes)), len(sizes)
    expect(calls <= n, f"right, but with {calls} calls for {n} pieces: one is enough")
    expect(most <= 6, f"right, but {pieces_at_once:.0f} of {n} gradients were held at once: add "
           "each as it comes")


def _gradients_in(each: Any, length: int) -> int:
    import tensorflow as tf

    held = isinstance(each, tf.Tensor | tf.Variable)
    return (each.shape.num_elements() or 0) // length if held else 0
