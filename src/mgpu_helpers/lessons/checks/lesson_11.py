"""The checks of lesson 11's exercises."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from mgpu_helpers import scaling
from mgpu_helpers.lessons.checks.judge import NotYet, call, exercise, numbers
from mgpu_helpers.wording import counted


@exercise
def efficiency(function: Callable[[dict[int, float], str], Any]) -> str:
    """Check exercise 1 of lesson 11: the efficiency of strong and of weak scaling."""
    for seconds, kind, right in (
        ({1: 8.0, 2: 5.0, 4: 4.0}, "strong", {1: 1.0, 2: 0.8, 4: 0.5}),
        ({1: 8.0, 2: 10.0, 4: 16.0}, "weak", {1: 1.0, 2: 0.8, 4: 0.5}),
        ({1: 2.0, 3: 2.5}, "weak", {1: 1.0, 3: 0.8}),
    ):
        got = call(function, dict(seconds), kind)
        hint = f"{kind} scaling, {seconds}: the efficiencies are {right}, not {got!r}"
        if not isinstance(got, Mapping) or got.keys() != right.keys():
            raise NotYet(hint)
        found = numbers([got[n] for n in right], (len(right),), hint)
        if not np.allclose(found, list(right.values())):
            raise NotYet(hint)
    return "strong and weak scaling told apart"


@exercise
def share_of_peak(function: Callable[[float, float, float, float, float], Any]) -> str:
    """Check exercise 2 of lesson 11: what share of a card's peak a claim needs."""
    for given, right in (((50e6, 55_000, 10, 1.0, 11e12), 2.5), ((1e9, 1000, 2, 4.0, 1e12), 0.5)):
        got = numbers(call(function, *given), (), "one number is wanted")
        if not np.isclose(got, right):
            raise NotYet(
                f"{given[0]:g} FLOP, {given[1]:,} examples, {given[2]} epochs, {given[3]:g} s and "
                f"a peak of {given[4]:g} give {right}, not {got:g}"
            )
    return "two claims checked, one of them impossible"


@exercise
def fewest(function: Callable[..., Any]) -> str:
    """Check exercise 3 of lesson 11: the fewest devices for a step in a given time."""
    work = scaling.Workload("a network", 1_000_000, 1e8)
    slow = scaling.Cost(arithmetic=1e-4, fixed=1e-3, moving=1e-10)
    fast = scaling.Cost(arithmetic=1e-4, fixed=1e-3, moving=1e-11)
    just = scaling.central(work, slow, 5, 1024 / 5).total
    for cost, seconds, right in (
        (slow, 0.2, 1), (slow, 0.05, 3), (slow, 0.03671, 4), (slow, just, 5), (slow, 0.0185, 10),
        (slow, 0.001, None), (fast, 0.0075, 21), (fast, 0.00665, 35),
    ):  # fmt: skip
        got = call(function, work, cost, 1024, seconds)
        if not np.array_equal(got, right):
            took = "no number of devices" if right is None else counted(right, "device")
            raise NotYet(f"for {1e3 * seconds:g} ms it is {took}, not {got!r}")
    return "eight times, and the fewest devices for each"
