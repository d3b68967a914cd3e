"""How long something takes: warm-up, repeats, median and spread; two ways compared in turn."""

from __future__ import annotations

import gc
import math
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from mgpu_helpers._formatting import counted, whole_number

Name = TypeVar("Name")

__all__ = ["compare", "measure", "several"]

FEWEST = 5  # pairs; fewer often lie on one side by chance


@dataclass(frozen=True, repr=False)
class Timing:
    """The seconds that each run took, in the order of the runs."""

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        """Return the median in seconds."""
        return float(np.median(self.seconds))

    @property
    def low(self) -> float:
        """Return the lower quartile in seconds."""
        return float(np.quantile(self.seconds, 0.25))

    @property
    def high(self) -> float:
        """Return the upper quartile in seconds."""
        return float(np.quantile(self.seconds, 0.75))

    def __repr__(self) -> str:
        rounded = float(f"{self.median:.3g}")
        unit, factor = ("s", 1) if rounded >= 1 else ("ms", 1e3) if rounded >= 1e-3 else ("µs", 1e6)
        middle, spread = _digits(*(factor * x for x in (self.median, self.low, self.high)))
        return f"{middle} {unit} ({spread}, {counted(len(self.seconds), 'run')})"


@dataclass(frozen=True, repr=False)
class Comparison:
    """Two ways timed in turn; every ratio is a's time over b's, so above 1 where b is faster."""

    a: Timing
    b: Timing
    names: tuple[str, str] = ("the first", "the second")

    @property
    def ratios(self) -> tuple[float, ...]:
        """Return a's time over b's for each pair of runs."""
        return tuple(a / b for a, b in zip(self.a.seconds, self.b.seconds, strict=True))

    @property
    def ratio(self) -> float:
        """Return the median of the ratios: how many times as fast b is as a."""
        return Timing(self.ratios).median

    @property
    def low(self) -> float:
        """Return the lower end of the range in which the median of many more pairs would be.

        It is so in at least 90 of 100 comparisons. Both ends are ratios: of 15 pairs the fourth
        from below and the fourth from above, of 20 the sixth, and of 5 or fewer the extremes.
        """
        return sorted(self.ratios)[_rank(len(self.ratios)) - 1]

    @property
    def high(self) -> float:
        """Return the upper end of the range of which `low` is the lower one."""
        return sorted(self.ratios)[-_rank(len(self.ratios))]

    @property
    def distinguishable(self) -> bool:
        """Say whether the two differ: from 5 pairs on, with low and high on one side of 1.

        A ratio whose two decimals are 1.00 does not count as a difference. Chance alone tells two
        identical steps apart in at most 7 of 100 comparisons of 5 or of 8 pairs, and in 4 of 15 or
        of 20, however much their times scatter.
        """
        return len(self.ratios) >= FEWEST and round(max(self.low, 1 / self.high), 2) > 1

    def __repr__(self) -> str:
        (slow, fast), ratio, low, high = self.names, self.ratio, self.low, self.high
        if self.distinguishable and ratio <= 1:
            slow, fast, ratio, low, high = fast, slow, 1 / ratio, 1 / high, 1 / low
        middle, spread = _digits(ratio, low, high)
        spread = f"({spread}, {counted(len(self.ratios), 'pair')})"
        if self.distinguishable:
            return f"{fast}: {middle} times as fast as {slow} {spread}"
        few = "" if len(self.ratios) >= FEWEST else f" by fewer than {FEWEST} pairs"
        return f"{slow} and {fast} cannot be told apart{few}: times in ratio {middle} {spread}"


def measure(fn: Callable[[], Any], *, warmup: int = 3, repeats: int = 20) -> Timing:
    """Time fn() in seconds, repeats times after warmup untimed calls; its value is dropped.

    fn must wait for its work. `Session.run` does. On a GPU today's code does not: an eager
    operation or a tf.function returns before the work is finished, so end fn in `.numpy()`.
    Python's garbage collection is off during the timed runs, as in timeit.

    >>> timing = measure(lambda: tf.ones([100, 100]).numpy(), repeats=5)
    >>> timing.low <= timing.median <= timing.high
    True
    """
    return several({"fn": fn}, warmup=warmup, repeats=repeats)["fn"]


def compare(
    a: Callable[[], Any],
    b: Callable[[], Any],
    *,
    warmup: int = 3,
    repeats: int = 20,
    names: tuple[str, str] = ("the first", "the second"),
) -> Comparison:
    """Time a() and b() in turn, A B A B, so that a machine that drifts slows both alike.

    Each gets warmup untimed calls and repeats timed ones; see `measure` for what they must do.
    The names are for printing. The brackets hold `low` and `high`: where the median of many more
    pairs would be.

    >>> short, long = lambda: sum(range(10)), lambda: sum(range(100_000))
    >>> compare(short, long, names=("a short sum", "a long one"))
    a short sum: ... times as fast as a long one (... to ..., 20 pairs)
    """
    first, second = several({0: a, 1: b}, warmup=warmup, repeats=repeats).values()
    return Comparison(first, second, names)


def several(
    ways: Mapping[Name, Callable[[], Any]], *, warmup: int = 3, repeats: int = 20
) -> dict[Name, Timing]:
    """Time several ways in turn, A B C A B C, as `compare` does two; give a Timing for each name.

    Two of them make a `Comparison(a, b)`, because their runs are pairs.

    >>> ways = {"short": lambda: sum(range(10)), "long": lambda: sum(range(100_000))}
    >>> found = several(ways, repeats=5)
    >>> found["short"].median < found["long"].median
    True
    """
    warmup = whole_number("warmup", warmup, "a number of runs", 0)
    repeats = whole_number("repeats", repeats, "a number of runs", 1)
    bound = int(os.environ.get("MGPU_REPEATS") or max(warmup, repeats))
    warmup, repeats = min(warmup, bound), min(repeats, bound)
    for _ in range(warmup):
        for fn in ways.values():
            fn()
    tick = time.get_clock_info("perf_counter").resolution  # nothing takes no time at all
    seconds: dict[Name, list[float]] = {name: [] for name in ways}
    collects = gc.isenabled()
    gc.disable()
    try:
        for _ in range(repeats):
            for name, fn in ways.items():
                start = time.perf_counter()
                fn()
                seconds[name].append(max(time.perf_counter() - start, tick))
    finally:
        if collects:
            gc.enable()
    return {name: Timing(tuple(taken)) for name, taken in seconds.items()}


def _rank(count: int) -> int:
    """Give the largest k with the median of all pairs between the k-th least and k-th largest.

    That is meant for at least 90 of 100 samples of so many pairs; 1 where no k is as sure. A pair
    is as likely above the median of all as below it, so the number below is binomial.
    """
    rank = below = 1  # below: the ways in which fewer than `rank` of the pairs are below it
    while 20 * (below := below + math.comb(count, rank)) <= 2**count:
        rank += 1
    return rank


def _digits(middle: float, low: float, high: float) -> tuple[str, str]:
    """Write a number to three digits, and its spread to the same place."""
    rounded = float(f"{middle:.3g}")
    places = max(0, 2 - math.floor(math.log10(rounded))) if rounded > 0 else 0
    return f"{middle:.{places}f}", f"{low:.{places}f} to {high:.{places}f}"
