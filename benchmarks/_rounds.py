"""Rounds of a comparison: until each ratio's median is known closely, or the time is over."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from mgpu_helpers import timing

# Seconds for each benchmark from its start. All together they are less than the 480 of `make bench`
# on a machine like that of the cards, and less than 720 where the least of rounds takes LATE times
# as long.
SECONDS = {
    "distribute": 55, "ensemble": 25, "explain": 45, "fit": 60, "jobs": 30, "link": 45,
    "memory": 20, "pipeline": 25, "predictions": 40, "ranges": 29, "scaling": 35,
    "trace": 25, "whatif": 45,
}  # fmt: skip
ASKED = {"peers": 480}  # runs only when it is named: it installs something, and takes long
ANOTHER, LATE = 60, 1.5
LEAST, CLOSE = 5, 0.02
BEGAN = time.monotonic()
short: list[str] = []  # what had no time for the least of its rounds; `_cards.write` keeps it
Way = Callable[[], Any]
Taken = TypeVar("Taken")


def left(late: float = 1.0) -> float:
    """Give the seconds that this benchmark has left, or so many times its seconds."""
    mine = (SECONDS | ASKED).get(Path(sys.argv[0]).stem, ANOTHER)
    return max(0.0, late * mine - (time.monotonic() - BEGAN))


def enough(
    ratios: Callable[[], Iterable[Sequence[float]]], *, least: int = LEAST, share: float = 1.0,
    warmup: int = 0,
) -> Iterator[int]:  # fmt: skip
    """Count rounds, those that warm up below 0, until all ratios' medians are known closely.

    ratios() gives what the rounds so far have found. No round begins that would end after a share
    of the time that is left; the first `least` have until LATE times that, and one there always is.
    """
    began = time.monotonic()
    due, late = (began + share * left(times) for times in (1.0, LATE))
    yield from range(-warmup, 1)
    for done in range(1, sys.maxsize):
        now = time.monotonic()
        then = now + (now - began) / (done + warmup)
        if done < least and then > late:
            short.append(f"{done} rounds of at least {least}: the time was over")
            return
        if done >= least and (then > due or all(map(known, ratios()))):
            return
        yield done


def known(rounds: Sequence[float]) -> bool:
    """Say whether a ratio's median is known to 2 %, or to a twentieth of how far it is from 1.

    It is known to about 1.57 times the middle half over the root of the rounds (the notch of
    McGill, Tukey and Larsen, 1978).
    """
    low, middle, high = np.quantile(rounds, [0.25, 0.5, 0.75])
    off = 1.57 * (high - low) / math.sqrt(len(rounds))
    return bool(off <= max(CLOSE * middle, abs(middle - 1) / 20))


def in_turn(
    ways: Mapping[str, Callable[[], Taken]], *, seconds: Callable[[Taken], float],
    least: int = LEAST, share: float = 1.0, always: Collection[str] = (),
) -> dict[str, list[Taken]]:  # fmt: skip
    """Take all ways in turn, the first one in each round, and the others while it pays.

    A way ends once its ratio to the first one is known; those of `always` never do. A way gives
    what it took, and `seconds` makes a number of that.
    """
    taken: dict[str, list[Taken]] = {name: [] for name in ways}
    first, *others = ways

    def ratios() -> list[list[float]]:
        pairs = (zip(taken[name], taken[first], strict=False) for name in others)
        return [[seconds(ours) / seconds(theirs) for ours, theirs in each] for each in pairs]

    for done in enough(ratios, least=least, share=share):
        if done >= least:
            others = [name for name, rounds in zip(others, ratios(), strict=True)
                      if name in always or not known(rounds)]  # fmt: skip
        for name in (first, *others):
            taken[name].append(ways[name]())
    return taken


def compare(a: Way, b: Way, *, warmup: int, share: float = 1.0) -> timing.Comparison:
    """Time two ways in turn as `timing.compare` does, with as many pairs as it takes."""
    both = several({"a": a, "b": b}, warmup=warmup, share=share)
    return timing.Comparison(both["a"], both["b"])


def several(
    ways: Mapping[Hashable, Way], *, warmup: int, share: float = 1.0
) -> dict[Any, timing.Timing]:
    """Time some ways in turn as `timing.several` does, each beside the first one."""
    taken: dict[Any, tuple[float, ...]] = {name: () for name in ways}

    def ratios() -> list[list[float]]:
        first, *others = taken.values()
        return [[a / b for a, b in zip(first, each, strict=True)] for each in others]

    for done in enough(ratios, share=share):
        once = timing.several(ways, warmup=0 if done else warmup, repeats=1)
        taken = {name: taken[name] + timed.seconds for name, timed in once.items()}
    return {name: timing.Timing(seconds) for name, seconds in taken.items()}
