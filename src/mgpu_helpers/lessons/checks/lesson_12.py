"""The checks of lesson 12's exercises."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from mgpu_helpers import scaling
from mgpu_helpers.lessons.checks.judge import NotYet, call, exercise, numbers
from mgpu_helpers.wording import counted


@exercise
def share_of_peak(function: Callable[[float, float, float, float, float], Any]) -> str:
    """Check exercise 1 of lesson 12: what share of a GPU's peak a claim needs."""
    rng = np.random.default_rng(seed=0)
    drawn = (1e6 * rng.uniform(1, 9), int(1e7 * rng.uniform(1, 9)), 7, 3.5, 1e13)
    for given in ((50e6, 55_000, 20, 1.0, 11e12), (1e9, 1000, 2, 4.0, 1e12), drawn):
        flops, examples, epochs, seconds, peak = given
        right = flops * examples * epochs / seconds / peak
        got = numbers(call(function, *given), (), "one number is wanted")
        if not np.isclose(got, right, rtol=1e-6, atol=0):
            raise NotYet(
                f"{flops:g} FLOP, {examples:,.0f} examples, {epochs} epochs, {seconds:g} s and "
                f"a peak of {peak:g} give {right:.6g}, not {got:.6g}"
            )
    return "three claims checked, two of them impossible"


@exercise
def fewest(function: Callable[..., Any]) -> str:
    """Check exercise 2 of lesson 12: the fewest devices for a step in a given time."""
    work = scaling.Workload("a network", 1_000_000, 1e8)
    slow = scaling.Cost(arithmetic=1e-4, fixed=1e-3, moving=1e-10)
    fast = scaling.Cost(arithmetic=1e-4, fixed=1e-3, moving=1e-11)
    free = scaling.Cost(arithmetic=1e-4, fixed=1e-3, moving=1e-15)

    def just(cost: scaling.Cost, n: int) -> float:
        return scaling.central(work, cost, n, 1024 / n).total

    between = (just(free, 64) + just(free, 65)) / 2  # 65 devices would do, and 64 do not
    for cost, seconds, right in (
        (slow, 0.2, 1), (slow, 0.05, 3), (slow, 0.03671, 4), (slow, just(slow, 5), 5),
        (slow, 0.0185, 10), (slow, 0.001, None), (fast, 0.00665, 35),
        (free, just(free, 63), 63), (free, just(free, 64), 64), (free, between, None),
    ):  # fmt: skip
        got = call(function, work, cost, 1024, seconds)
        _same_count(got, right, f"for {1e3 * seconds:g} ms")
    _check_drawn(function)
    return "eleven times, and the fewest devices for each"


def _check_drawn(function: Callable[..., Any]) -> None:
    rng = np.random.default_rng()
    batch, right = int(rng.integers(2000, 3000)), int(rng.integers(20, 30))
    work = scaling.Workload("another network", 20_000_000, 1e8)
    cost = scaling.Cost(arithmetic=2e-4, fixed=2e-3, moving=1e-12)
    took = [scaling.central(work, cost, n, batch / n).total for n in (right - 1, right)]
    seconds = sum(took) / 2
    got = call(function, work, cost, batch, seconds)
    _same_count(got, right, f"for a batch of {batch:,} in {1e3 * seconds:.3g} ms")


def _same_count(got: Any, right: int | None, what: str) -> None:
    if not np.array_equal(got, np.asarray(right)):
        took = "no number of devices" if right is None else counted(right, "device")
        raise NotYet(f"{what} it is {took}, not {got!r}")
