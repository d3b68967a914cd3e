"""The checks of lesson 11's exercises."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from mgpu_helpers.lessons.checks.judge import NotYet, call, exercise, numbers


@exercise
def efficiency(function: Callable[[dict[int, float], str], Any]) -> str:
    """Check exercise 1 of lesson 11: the efficiency of strong and of weak scaling."""
    rng = np.random.default_rng(seed=0)
    drawn = {n: float(rng.uniform(1, 9)) for n in (5, 1, 3)}
    for kind, seconds, right in (
        ("strong", {1: 8.0, 2: 5.0, 4: 4.0}, {1: 1.0, 2: 0.8, 4: 0.5}),
        ("weak", {1: 8.0, 2: 10.0, 4: 16.0}, {1: 1.0, 2: 0.8, 4: 0.5}),
        ("weak", drawn, {n: drawn[1] / t for n, t in drawn.items()}),
        ("strong", drawn, {n: drawn[1] / n / t for n, t in drawn.items()}),
    ):
        given = dict(seconds)
        got = call(function, given, kind)
        if given != seconds:
            raise NotYet(f"it changes the dictionary that it is given to {given}")
        if not isinstance(got, Mapping) or set(got) != set(right):
            wanted = f"a dictionary is wanted, with the keys {', '.join(map(str, seconds))}"
            raise NotYet(f"{wanted}, not {got!r}")
        told = ", ".join(f"{t:.3g} s on {n}" for n, t in seconds.items())
        for n, value in right.items():
            hint = f"{kind} scaling, {told}: the efficiency on {n} is {value:.6g}, not {got[n]!r}"
            if not np.isclose(numbers(got[n], (), hint), value):
                raise NotYet(hint)
    return "strong and weak scaling told apart"


@exercise
def differ(function: Callable[[list[float], list[float]], Any]) -> str:
    """Check exercise 2 of lesson 11: whether two ways, timed in turn, differ."""
    slower = [1.0 + 0.1 * i for i in range(20)]  # a machine that slows down during the pairs
    noise = [1.5, 0.7, 1.02, 1.03, 1.04, 1.02, 1.05, 1.03]
    for what, a, b, right in (
        ("b takes 3 % less in every pair, while the machine slows down",
         slower, [0.97 * t for t in slower], True),
        ("b takes 3 % more in every pair, while the machine slows down",
         slower, [1.03 * t for t in slower], True),
        ("two of eight pairs are far off, the others differ by 2 to 5 %",
         noise, [1.0] * 8, True),
        ("two of eight pairs are far off, and b is the slower one",
         [1.0] * 8, noise, True),
        ("the ratios are 0.9 and 1.1 by turns", [0.9, 1.1] * 4, [1.0] * 8, False),
        ("the ratios are 1 but for two outliers of 3", [1.0] * 6 + [3.0] * 2, [1.0] * 8, False),
        ("the medians differ by 10 %, and the pairs go both ways",
         [1.0, 1.1, 1.2, 1.3, 1.1], [1.2, 1.0, 1.0, 1.4, 0.9], False),
        ("b takes the times of a, 3 % longer and in reverse, so that the pairs go both ways",
         slower, [1.03 * t for t in slower[::-1]], False),
    ):  # fmt: skip
        given = list(a), list(b)
        got = call(function, *given)
        if given != (a, b):
            raise NotYet("it changes a list that it is given: the pairs are lost")
        if not isinstance(got, bool | np.bool_):
            raise NotYet(f"True or False is wanted, not {got!r}")
        if got != right:
            raise NotYet(f"{what}: {right} is right, not {got}")
    _check_drawn(function)
    return "eight pairs of steps, and chance taken for chance"


def _check_drawn(function: Callable[[list[float], list[float]], Any]) -> None:
    rng = np.random.default_rng()
    for _ in range(500):
        pairs = int(rng.integers(5, 13))
        a, b = (1 + 0.1 * rng.standard_normal([2, pairs])) * rng.uniform(1, 9, pairs)
        b *= rng.choice([0.9, 1.0, 1.1])
        ends = np.quantile(a / b, [0.25, 0.75])
        others = np.quantile(b / a, [0.25, 0.75]), np.exp(np.quantile(np.log(a / b), [0.25, 0.75]))
        found = {bool(low > 1 or high < 1) for low, high in (ends, *others)}
        if len(found) > 1 or np.min(np.abs(ends - 1)) < 0.011:
            continue  # on the border, where timing.Comparison rounds
        (right,) = found
        got = call(function, a.tolist(), b.tolist())
        if not isinstance(got, bool | np.bool_) or got != right:
            low, high = ends
            raise NotYet(
                f"the middle half of {len(a)} ratios reaches from {low:.3f} to {high:.3f}: {right} "
                f"is right, not {got}"
            )
