"""Rounds of a comparison: as many as it takes until each ratio's median is known closely."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from mgpu_helpers import timing

LEAST, CLOSE = 5, 0.02
Way = Callable[[], Any]


def enough(
    most: int, ratios: Callable[[], Iterable[Sequence[float]]], least: int = LEAST
) -> Iterator[int]:
    """Count rounds, up to `most`, until all the ratios' medians are known to 2 %.

    ratios() gives what the rounds so far have found. A median is known to about 1.57 times the
    middle half over the root of the rounds (the notch of McGill, Tukey and Larsen, 1978).
    """
    for done in range(most):
        if done >= least and all(map(known, ratios())):
            return
        yield done


def known(rounds: Sequence[float]) -> bool:
    """Say whether the median of some rounds is known to 2 %."""
    low, middle, high = np.quantile(rounds, [0.25, 0.5, 0.75])
    return bool(1.57 * (high - low) / np.sqrt(len(rounds)) <= CLOSE * middle)


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
