"""Rounds of a comparison: as many as it takes until each ratio's median is known closely."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from mgpu_helpers import timing

LEAST, CLOSE = 5, 0.02
Way = Callable[[], Any]
Taken = TypeVar("Taken")


def enough(
    most: int, ratios: Callable[[], Iterable[Sequence[float]]], least: int = LEAST
) -> Iterator[int]:
    """Count rounds, up to `most`, until all the ratios' medians are known closely.

    ratios() gives what the rounds so far have found. A median is known to about 1.57 times the
    middle half over the root of the rounds (the notch of McGill, Tukey and Larsen, 1978).
    """
    for done in range(most):
        if done >= least and all(map(known, ratios())):
            return
        yield done


def known(rounds: Sequence[float]) -> bool:
    """Say whether a ratio's median is known to 2 %, or to a twentieth of how far it is from 1."""
    low, middle, high = np.quantile(rounds, [0.25, 0.5, 0.75])
    off = 1.57 * (high - low) / np.sqrt(len(rounds))
    return bool(off <= max(CLOSE * middle, abs(middle - 1) / 20))


def in_turn(
    ways: Mapping[str, Callable[[], Taken]], *, most: int, least: int = LEAST,
    seconds: Callable[[Taken], float], always: Collection[str] = (),
) -> dict[str, list[Taken]]:  # fmt: skip
    """Take all ways in turn, the first one in each round, and the others while it pays.

    A way ends once its ratio to the first one is known; those of `always` never do. A way gives
    what it took, and `seconds` makes a number of that.
    """
    taken: dict[str, list[Taken]] = {name: [] for name in ways}
    first, *others = ways

    def open_(name: str) -> bool:
        both = zip(taken[name], taken[first], strict=False)
        return not known([seconds(ours) / seconds(theirs) for ours, theirs in both])

    for done in range(most):
        if done >= least:
            if not any(map(open_, others)):
                break
            others = [name for name in others if name in always or open_(name)]
        for name in (first, *others):
            taken[name].append(ways[name]())
    return taken


def compare(a: Way, b: Way, *, warmup: int, most: int) -> timing.Comparison:
    """Time two ways in turn as `timing.compare` does, with as many pairs as it takes."""
    both = several({"a": a, "b": b}, warmup=warmup, most=most)
    return timing.Comparison(both["a"], both["b"])


def several(ways: Mapping[Hashable, Way], *, warmup: int, most: int) -> dict[Any, timing.Timing]:
    """Time some ways in turn as `timing.several` does, each beside the first one."""
    taken: dict[Any, tuple[float, ...]] = {name: () for name in ways}

    def ratios() -> list[list[float]]:
        first, *others = taken.values()
        return [[a / b for a, b in zip(first, each, strict=True)] for each in others]

    for done in enough(most, ratios):
        once = timing.several(ways, warmup=0 if done else warmup, repeats=1)
        taken = {name: taken[name] + timed.seconds for name, timed in once.items()}
    return {name: timing.Timing(seconds) for name, seconds in taken.items()}
