"""Ask a cost, or a fit, how many times as fast n devices are as one."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from mgpu_helpers.scaling.estimate import Estimate, doubts, no_spread, reach
from mgpu_helpers.scaling.fit import Fit
from mgpu_helpers.scaling.links import Link
from mgpu_helpers.scaling.model import BATCH, DEVICES, Breakdown, Cost, Workload, positive
from mgpu_helpers.wording import counted, whole_number

Way = Callable[..., Breakdown]


def speedup(
    way: Way,
    workload: Workload,
    cost: Cost | Fit,
    n: int,
    *,
    per_device_batch: float | None = None,
    global_batch: float | None = None,
    link: Link | None = None,
) -> float:
    """Give how many times as many examples a second n devices train as one.

    Either each device keeps its batch (weak scaling), or n devices share one (strong scaling). With
    a Fit in the place of the cost the number is an `Estimate`: about 95 % of the speed-ups that are
    measured lie from low to high, which have the band of the link in them.

    >>> seconds = {1: 0.30, 2: 0.32, 4: 0.325}
    >>> rows = [Measurement(Layout(n, 64, "ring"), s) for n, s in seconds.items()]
    >>> fitted = fit(Workload("mine", 10_000_000), rows, ["arithmetic", "moving"])
    >>> speedup(ring, fitted.workload, fitted, 8, per_device_batch=64)
    7.27 (5.8 to 9.11); in doubt: 8 devices, where the rows have 4 at most; ...
    """
    batch = fixed_batch(per_device_batch, global_batch)
    whole_number("n", n, DEVICES, 1)
    share = batch if global_batch is None else batch / n
    if isinstance(cost, Fit):
        return _estimated(way, workload, cost, n, batch, share, link)
    alone = way(workload, cost, 1, batch, link).total
    together = way(workload, cost, n, share, link).total
    return alone / together * n * share / batch


def _estimated(
    way: Way, workload: Workload, fit: Fit, n: int, batch: float, share: float, link: Link | None
) -> Estimate:
    if workload != fit.workload:
        raise ValueError(
            f"the fit is of {fit.workload.name}, and {workload.name} is asked about: ask about "
            f"{fit.workload.name}, or give a Cost that holds for both."
        )
    steps, slopes, gains = ((1, batch), (n, share)), [], []
    for step in steps:
        wanted = _wanted(way, fit, *step, link)
        fit.check(wanted, f"{counted(step[0], 'device')} x {step[1]:g}")
        slopes.append(wanted / way(workload, fit.cost, *step, link).total)
    for road in band(link):
        alone, together = (way(workload, fit.cost, *step, road).total for step in steps)
        gains.append(alone / together * n * share / batch)
    against = doubts(fit, n, share, wanted)
    if no_spread(fit):
        return Estimate(gains[0], doubts=against)
    factor = math.exp(reach(fit, slopes[0] - slopes[1], 2)) if n > 1 else 1.0
    return Estimate(gains[0], gains[1] / factor, gains[2] * factor, against)


def _wanted(way: Way, fit: Fit, n: int, batch: float, link: Link | None) -> np.ndarray:
    """Count what a step asks of each fitted term; what the link costs, the fit does not tell."""
    zero = {"arithmetic": 0.0, "fixed": 0.0}
    costs = {term: Cost(**zero | {term: 1.0}) for term in fit.terms}
    if link:
        costs |= {term: Cost(**zero) for term in fit.terms if term in ("moving", "latency")}
    return np.array([way(fit.workload, cost, n, batch).total for cost in costs.values()])


def band(link: Link | None) -> list[Link | None]:
    """Give a link as it is, at its slowest and at its fastest."""
    if link is None:
        return [None] * 3
    return [replace(link, bandwidth=b) for b in (link.bandwidth, link.low, link.high)]


def fixed_batch(per_device_batch: float | None, global_batch: float | None) -> float:
    """Give the batch that stays the same on any number of devices, whichever of them it is."""
    if (per_device_batch is None) == (global_batch is None):
        raise ValueError(
            f"per_device_batch={per_device_batch} and global_batch={global_batch}: give one of "
            "them, the one that stays the same on any number of devices."
        )
    batch = per_device_batch or 0 if global_batch is None else global_batch
    positive("batch", batch, BATCH)
    return batch
