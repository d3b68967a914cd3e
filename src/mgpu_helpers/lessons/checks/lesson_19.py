"""The checks of lesson 19's exercises."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from mgpu_helpers.lessons.checks.judge import call, exercise, expect, numbers, same_as


@exercise
def efficiency(function: Any) -> str:
    """Check exercise 1 of lesson 19: the efficiency of strong and of weak scaling."""
    rng = np.random.default_rng(seed=0)
    drawn = {n: float(rng.uniform(1, 9)) for n in (5, 1, 3)}
    for kind, seconds in (
        ("strong", {1: 8.0, 2: 5.0, 4: 4.0}), ("weak", {1: 8.0, 2: 10.0, 4: 16.0}),
        ("weak", drawn), ("strong", drawn),
    ):
        given = dict(seconds)
        got = call(function, given, kind)
        expect(given == seconds, f"it changes the dictionary that it is given to {given}")
        keys = f"with the keys {', '.join(map(str, seconds))}, not {got!r}"
        right = isinstance(got, Mapping) and set(got) == set(seconds)
        expect(right, f"a dictionary is wanted, {keys}")
        told = ", ".join(f"{t:.3g} s on {n}" for n, t in seconds.items())
        for n, t in seconds.items():
            value = seconds[1] / t / (n if kind == "strong" else 1)
            hint = f"{kind} scaling, {told}: the efficiency on {n} is {value:.6g}, not {got[n]!r}"
            expect(np.isclose(numbers(got[n], (), hint), value), hint)
    return "strong and weak scaling told apart"


_SLOWER = [1.0 + 0.1 * i for i in range(15)]  # a machine that slows down during the pairs
_FAR = [1.5, 0.7, 0.6] + [1.02, 1.03, 1.04] * 4
_KNOWN = (
    ("b takes 0.4 % less in every pair, unless it is rounded away, while the machine slows down",
     _SLOWER, [0.996 * t for t in _SLOWER]),
    ("b takes 3 % more in every pair, while the machine slows down",
     _SLOWER, [1.03 * t for t in _SLOWER]),
    ("three of the pairs are far off, the others differ by 2 to 4 %", _FAR, [1.0] * 15),
    ("three of the pairs are far off, and b is the slower one", [1.0] * 15, _FAR),
    ("four of the ratios are 0.9, the others 1.3", [0.9] * 4 + [1.3] * 11, [1.0] * 15),
    ("four of the ratios are 1.1, the others 0.9", [1.1] * 4 + [0.9] * 11, [1.0] * 15),
    ("the ratios are 1 but for three outliers of 3", [1.0] * 12 + [3.0] * 3, [1.0] * 15),
    ("b takes the times of a, 3 % longer and in reverse, so that the pairs go both ways",
     _SLOWER, [1.03 * t for t in _SLOWER[::-1]]),
)  # fmt: skip


def _pairs() -> Iterator[tuple[list[float], list[float]]]:
    yield from ((a, b) for _, a, b in _KNOWN)
    rng = np.random.default_rng()
    for _ in range(500):
        a, b = (1 + 0.1 * rng.standard_normal([2, 15])) * rng.uniform(1, 9, 15)
        b *= rng.choice([0.9, 1.0, 1.1])
        if np.min(np.abs(_ends(a, b) - 1)) >= 1e-6:
            yield a.tolist(), b.tolist()


def _ends(a: Any, b: Any) -> np.ndarray:
    return np.sort(np.divide(a, b))[[3, -4]]


def _told(right: bool, got: bool, a: list[float], b: list[float]) -> str:
    low, high = _ends(a, b)
    drawn = f"the fourth ratios from below and from above are {low:.3f} and {high:.3f}"
    what = next((what for what, *both in _KNOWN if both == [a, b]), drawn)
    return f"{what}: {right} is right, not {got}"


#: Check exercise 2 of lesson 19: whether two ways, timed in turn, differ.
differ = same_as(
    lambda a, b: bool(_ends(a, b)[0] > 1 or _ends(a, b)[1] < 1),
    _pairs,
    told=_told,
    changed="it changes a list that it is given: the pairs are lost",
    yes="right for eight cases, and no difference seen where it was chance",
)
