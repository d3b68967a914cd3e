"""The checks of lesson 10's exercises."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from mgpu_helpers.lessons.checks.judge import call, exercise, expect, numbers, same_as


def _models() -> Iterator[tuple[int, int, int]]:
    yield from [(12, 100, 1), (11, 100, 100), (10, 422, 56), (7, 10, 1000)]
    random = np.random.default_rng()
    for _ in range(6):
        yield (int(random.integers(3, 60)), int(random.integers(1, 1000)),
               int(random.integers(1, 1000)))  # fmt: skip


def _best(blocks: int, inside: int, crossing: int, whole: bool = True) -> int:
    def held(parts: int) -> float:
        largest = -(-blocks // parts) if whole else blocks / parts
        return parts * crossing + largest * inside

    return min(range(1, blocks + 1), key=held)


def _told(right: int, got: Any, blocks: int, inside: int, crossing: int) -> str:
    if got == int(got) and 1 <= got <= blocks:
        held = int(got) * crossing + -(-blocks // int(got)) * inside
        least = right * crossing + -(-blocks // right) * inside
        said = f"{int(got)} parts hold {held} bytes, and {right} would hold {least}"
    else:
        said = f"{got:g} is no number of parts between 1 and {blocks}"
    return f"of {blocks} blocks with {inside} bytes inside and {crossing} crossing, {said}"


#: Check exercise 1 of lesson 10: the number of parts that holds least, of models that it draws.
best = same_as(
    _best,
    _models,
    told=_told,
    way="one whole number of parts",
    wrong={
        "of several numbers of parts that hold as little, give the smallest":
            lambda blocks, inside, crossing: max(
                range(1, blocks + 1),
                key=lambda p: (-p * crossing + blocks // -p * inside, p),
            ),
        "the square root of the blocks knows nothing of the bytes":
            lambda blocks, inside, crossing: max(1, round(blocks**0.5)),
        "a part for each block keeps what crosses most often":
            lambda blocks, inside, crossing: blocks,
        "the largest part counts, and some have one block more":
            lambda blocks, inside, crossing: _best(blocks, inside, crossing, whole=False),
        "in the square root it is inside that is divided by crossing":
            lambda blocks, inside, crossing: min(
                blocks, max(1, round((blocks * crossing / inside) ** 0.5))
            ),
        "blocks that a part leaves over are in another part":
            lambda blocks, inside, crossing: min(
                range(1, blocks + 1), key=lambda p: p * crossing + blocks // p * inside
            ),
    },
    unknown="count what each number of parts holds, and take the least",
    yes="right for ten models, six of them drawn by lot",
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
