"""The checks of lesson 24's exercises."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from mgpu_helpers.lessons.checks.judge import same_as

DEVICES = ("/GPU:0", "/GPU:1", "/GPU:2")


def _chains() -> Iterator[tuple[list[str]]]:
    a, b, c = DEVICES
    for each in ([a, a, b, b, b], [a, b, a, c], [a, a, a], [a, b, c, c], [b]):
        yield (each,)
    rng = np.random.default_rng()
    for _ in range(5):
        yield ([str(each) for each in rng.choice(DEVICES, int(rng.integers(2, 9)))],)


def _changes(called: Sequence[str]) -> int:
    return sum(a != b for a, b in itertools.pairwise(called))


#: Check exercise 1 of lesson 24: the tensors that cross in a step, of chains that it draws.
tensors = same_as(
    lambda called: 2 * _changes(called),
    _chains,
    told=lambda right, got, called: f"of layers on {', '.join(called)}, {right} cross, not {got:g}",
    way="one whole number of tensors",
    wrong={
        "the layers may come back to a device that they have left":
            lambda called: 2 * (len(set(called)) - 1),
        "count the borders, not the devices": lambda called: len(set(called)),
        "for each activation a gradient comes back": _changes,
        "a tensor crosses only if the next layer is on another device":
            lambda called: 2 * (len(called) - 1),
    },
    changed="it changes the list that it is given: make a new one",
    unknown="compare each layer with the next",
    yes="right for ten lists of layers, five of them drawn by lot",
)  # fmt: skip


def _programs() -> Iterator[tuple[list[str], list[str], list[int]]]:
    a, b, _ = DEVICES
    yield [a, a, b], [b, b, b], [10, 20, 400]
    yield [a, b], [a, b], [5, 7]
    yield [a, a], [b, b], [4, 8]
    rng = np.random.default_rng()
    for _ in range(5):
        n = int(rng.integers(2, 7))
        made, called = ([str(each) for each in rng.choice(DEVICES, n)] for _ in range(2))
        yield made, called, [int(size) for size in rng.integers(1, 1000, n)]


def _crossed(made: Any, called: Any, sizes: Any) -> int:
    return sum(size for a, b, size in zip(made, called, sizes, strict=True) if a != b)


#: Check exercise 2 of lesson 24: the bytes of weights that cross, of programs that it draws.
fetched = same_as(
    _crossed,
    _programs,
    told=lambda right, got, made, called, sizes: (
        f"of weights made on {', '.join(made)}, called on {', '.join(called)}, with "
        f"{', '.join(map(str, sizes))} bytes, {right} cross, not {got:g}"
    ),
    way="one number of bytes",
    wrong={
        "weights cross only if their layer is called on another device":
            lambda made, called, sizes: sum(sizes),
        "these are the bytes that stay": lambda made, called, sizes: (
            sum(sizes) - _crossed(made, called, sizes)
        ),
        "in the forward pass weights cross once": lambda made, called, sizes: (
            2 * _crossed(made, called, sizes)
        ),
        "return bytes, not a number of layers": lambda made, called, sizes: (
            _crossed(made, called, [1] * len(sizes))
        ),
    },
    changed="it changes a list that it is given: make a new one",
    unknown="compare, for each layer, where its weights are and where it was called",
    yes="right for eight programs, five of them drawn by lot",
)  # fmt: skip
