"""The checks of lesson 16's exercises."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from mgpu_helpers import scaling
from mgpu_helpers._formatting import counted
from mgpu_helpers.lessons.checks.judge import same_as


def _claims() -> list[tuple[float, ...]]:
    rng = np.random.default_rng(seed=0)
    drawn = (1e6 * rng.uniform(1, 9), int(1e7 * rng.uniform(1, 9)), 7, 3.5, 1e13)
    return [(50e6, 55_000, 20, 1.0, 11e12), (1e9, 1000, 2, 4.0, 1e12), drawn]


#: Check exercise 1 of lesson 16: what share of a GPU's peak a claim needs.
share_of_peak = same_as(
    lambda flops, examples, epochs, seconds, peak: flops * examples * epochs / seconds / peak,
    _claims,
    told=lambda right, got, flops, examples, epochs, seconds, peak: (
        f"{flops:g} FLOP, {examples:,.0f} examples, {epochs} epochs, {seconds:g} s and a peak of "
        f"{peak:g} give {right:.6g}, not {got:.6g}"
    ),
    way="one number is wanted",
    yes="three claims checked, two of them impossible",
)


def _seconds(work: scaling.Workload, cost: scaling.Cost, batch: int, n: int) -> float:
    return scaling.central(work, cost, n, batch / n).total


def _fewest(work: scaling.Workload, cost: scaling.Cost, batch: int, seconds: float) -> int | None:
    return next((n for n in range(1, 65) if _seconds(work, cost, batch, n) <= seconds), None)


def _steps() -> Iterator[tuple[scaling.Workload, scaling.Cost, int, float]]:
    work, rng = scaling.Workload("a network", 1_000_000, 1e8), np.random.default_rng()
    slow, fast, free = (scaling.Cost(arithmetic=1e-4, fixed=1e-3, moving=moving)
                        for moving in (1e-10, 1e-11, 1e-15))
    for seconds in (0.2, 0.05, 0.03671, _seconds(work, slow, 1024, 5), 0.0185, 0.001):
        yield work, slow, 1024, seconds
    yield work, fast, 1024, 0.00665
    last, more = (_seconds(work, free, 1024, n) for n in (64, 65))
    for seconds in (_seconds(work, free, 1024, 63), last, (last + more) / 2):  # which 65 would do
        yield work, free, 1024, seconds
    work = scaling.Workload("another network", 20_000_000, 1e8)
    cost = scaling.Cost(arithmetic=2e-4, fixed=2e-3, moving=1e-12)
    batch, n = rng.integers(2000, 3000), rng.integers(20, 30)
    took = [_seconds(work, cost, int(batch), int(each)) for each in (n - 1, n)]
    yield work, cost, int(batch), sum(took) / 2


def _told(right: int | None, got: Any, work: Any, cost: Any, batch: int, seconds: float) -> str:
    took = "no number of devices" if right is None else counted(right, "device")
    what = f"for {1e3 * seconds:g} ms"
    if batch != 1024:
        what = f"for a batch of {batch:,} in {1e3 * seconds:.3g} ms"
    return f"{what} it is {took}, not {got!r}"


#: Check exercise 2 of lesson 16: the fewest devices for a step in a given time.
fewest = same_as(
    _fewest, _steps, told=_told, yes="eleven times, and the fewest devices for each"
)
