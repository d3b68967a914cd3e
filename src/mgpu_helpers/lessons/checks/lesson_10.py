"""The checks of lesson 10's exercises."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from mgpu_helpers.lessons.checks.judge import call, exercise, expect, numbers, same_as


def _steps() -> Iterator[tuple[int, int, int, int, int]]:
    yield from [
        (256, 1000, 100, 100, 10), (7, 56, 10, 25, 20), (64, 750, 100, 300, 10),
        (11, 43, 10, 3, 10), (10, 47, 10, 3, 10), (8, 100, 60, 45, 10),
    ]  # fmt: skip
    random = np.random.default_rng()
    for _ in range(6):
        batch, example, fixed, added = map(int, random.integers(3, 100, 4))
        yield batch, fixed + added + example * int(random.integers(1, batch)), fixed, added, example


def _fewest(
    batch: int, room: int, fixed: int, added: int, example: int, *, alone: bool = False,
    choices: Callable[[int], Iterable[int]] = lambda batch: range(1, batch + 1),
    largest: Callable[[int, int], float] = lambda batch, pieces: -(-batch // pieces),
) -> int:  # fmt: skip
    def held(pieces: int) -> float:
        return fixed + (added if alone or pieces > 1 else 0) + largest(batch, pieces) * example

    return next((pieces for pieces in choices(batch) if held(pieces) <= room), 0)


def _told(
    right: int, got: Any, batch: int, room: int, fixed: int, added: int, example: int
) -> str:
    given = f"for {batch} examples of {example} bytes, {fixed} fixed and {added} added"
    if not (got == int(got) and 1 <= got <= batch):
        return f"{given}, {room} bytes of room want {right}, not {got:g}"
    held = fixed + (added if got > 1 else 0) + -(-batch // int(got)) * example
    return f"{given}, {int(got)} pieces hold {held} of {room} bytes, and {right} is right"


#: Check exercise 1 of lesson 10: the fewest pieces that fit, of steps that it draws.
fewest = same_as(
    _fewest,
    _steps,
    told=_told,
    way="one whole number of pieces",
    wrong={
        "the largest piece counts, and some have one example more":
            lambda *step: _fewest(*step, largest=lambda batch, pieces: batch / pieces),
        "examples that are left over are in a piece, too":
            lambda *step: _fewest(*step, largest=lambda batch, pieces: batch // pieces),
        "round up, and from two pieces on leave room for the sum of gradients, too":
            lambda batch, room, fixed, added, example: batch * example // (room - fixed),
        "with two or more pieces a step also holds the sum of gradients":
            lambda batch, room, fixed, added, example: _fewest(batch, room, fixed, 0, example),
        "one piece needs no sum of gradients":
            lambda *step: _fewest(*step, alone=True),
        "the pieces need not divide the batch":
            lambda *step: _fewest(
                *step, choices=lambda batch: [p for p in range(1, batch + 1) if batch % p == 0]
            ),
        "a piece can be a single example: try as many pieces as there are examples, too":
            lambda *step: _fewest(*step, choices=lambda batch: range(1, batch)),
        "where nothing fits, return 0":
            lambda batch, *rest: _fewest(batch, *rest) or batch,
        "pieces of one example fit, but fewer do, too":
            lambda batch, room, fixed, added, example: batch,
    },
    unknown="count what a step holds with 1, 2, 3, ... pieces, and take the first that fits",
    yes="right for twelve steps, six of them drawn at random",
)  # fmt: skip


@exercise
def drop(function: Any) -> str:
    """Check exercise 2 of lesson 10: a dropout whose mask is a function of its seed."""
    import tensorflow as tf

    way = "the numbers that are kept, doubled, and 0 for the others"
    x = tf.constant(np.random.default_rng(0).uniform(1, 2, [40, 100]), tf.float32)
    first, other = np.random.default_rng().choice(2**20, [2, 2], replace=False).tolist()

    def masked(seed: Any, run: Any = function) -> np.ndarray:
        given = numbers(call(run, x, seed), (40, 100), way)
        kept = given != 0
        expect(not np.allclose(given[kept], x.numpy()[kept]), "what is kept has to be doubled")
        expect(np.allclose(given[kept], 2 * x.numpy()[kept]), f"return {way}")
        return kept

    kept = masked(first)
    expect(0 < kept.mean() < 1, f"{kept.mean():.0%} are kept: drop some, and not all")
    rows = (kept == kept[:1]).all() or (kept == kept[:, :1]).all()
    expect(not rows, "each number is dropped on its own, and not whole rows or columns")
    expect(abs(kept.mean() - 0.5) < 0.1, f"{kept.mean():.0%} are kept, not about half")
    alike = [(kept[1:] == kept[:-1]).mean(), (kept[:, 1:] == kept[:, :-1]).mean()]
    expect(max(alike) < 0.65, "each number is dropped on its own: neighbours share a draw")
    expect(min(alike) > 0.35, "each number is dropped on its own: the mask has a pattern")
    expect((masked(first) == kept).all(), "called twice with one seed, it gave two masks")
    expect((masked(other) != kept).any(), "two seeds gave the same mask")

    @tf.function
    def twice(x: Any) -> Any:
        return function(x, first), function(x, first)

    (a, b), (c, _) = call(twice, x), call(twice, x)
    expect(np.array_equal(a, b), "in a graph, it gave two masks for one seed")
    expect(np.array_equal(a, c), "a graph that ran twice gave two masks for one seed")
    swapped = masked(first[::-1])
    expect((swapped != kept).any(), "the seed's two numbers, swapped, gave the same mask")
    for near in ([first[0], other[1]], [other[0], first[1]]):
        said = f"the seeds {first} and {near} gave the same mask: use both numbers"
        expect((masked(near) != kept).any(), said)
    seen: dict[bytes, list[int]] = {}
    for small in ([a, b] for a in range(10) for b in range(10)):
        twin = seen.setdefault(masked(small).tobytes(), small)
        expect(twin == small, f"the seeds {twin} and {small} gave the same mask")
    with tf.GradientTape() as tape:
        tape.watch(x)
        total = tf.reduce_sum(call(function, x, first))
    slope = tape.gradient(total, x)
    expect(slope is not None, "it has no gradient: compute with TensorFlow")
    expect(np.allclose(slope, 2 * kept), "its gradient is not 2 where a number is kept, and 0 else")
    return "one mask for one seed, also in a graph, and its gradient has the same mask"
