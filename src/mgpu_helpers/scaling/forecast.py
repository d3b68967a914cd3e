"""Ask a cost about more devices: the efficiency, and where more of them stop paying."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from mgpu_helpers.scaling.links import Link
from mgpu_helpers.scaling.model import Cost, Workload, central, ring
from mgpu_helpers.scaling.speedup import Way, band, fixed_batch, speedup


@dataclass(frozen=True)
class Curve:
    """Efficiencies, 0 to 1, at some numbers of devices; low and high are those of the link."""

    counts: tuple[int, ...]
    middle: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]


def efficiency(
    way: Way,
    workload: Workload,
    cost: Cost,
    counts: Iterable[int],
    *,
    per_device_batch: float | None = None,
    global_batch: float | None = None,
    link: Link | None = None,
) -> Curve:
    """Give the speed-up of n devices over n, for each n, with the band of the link.

    Without a link low and high are the middle.

    >>> work, cost = Workload("mine", 1_000_000), Cost(1e-4, 5e-3, moving=1e-10)
    >>> curve = efficiency(ring, work, cost, [1, 2, 4], per_device_batch=32)
    >>> [round(share, 2) for share in curve.middle]
    [1.0, 0.95, 0.93]
    """
    counts = tuple(counts)
    batch = {"per_device_batch": per_device_batch, "global_batch": global_batch}
    return Curve(counts, *(
        tuple(speedup(way, workload, cost, n, link=each, **batch) / n for n in counts)
        for each in band(link)
    ))  # fmt: skip


@dataclass(frozen=True)
class Knee:
    """Where more devices stop paying: the number of devices, the speed-up there, and at most."""

    devices: float
    speedup: float
    most: float


def knee(
    way: Way,
    workload: Workload,
    cost: Cost,
    *,
    per_device_batch: float | None = None,
    global_batch: float | None = None,
    link: Link | None = None,
) -> Knee:
    """Find where more devices stop paying, in closed form.

    With a fixed per-device batch the speed-up has a ceiling, and the knee is where half of it is
    reached. With a fixed global batch there is a fastest number of devices. Either may be infinite.

    >>> work, cost = Workload("mine", 1_000_000), Cost(1e-4, 5e-3, moving=1e-10)
    >>> found = knee(central, work, cost, per_device_batch=32)
    >>> round(found.devices, 1), round(found.most, 1)
    (9.2, 10.2)
    """
    batch = fixed_batch(per_device_batch, global_batch)
    if way not in (central, ring):
        raise ValueError("this way of averaging has no closed form: use central or ring.")
    cost = cost.over(link) if link else cost
    passes = 2 * cost.moving * workload.bytes
    # A step takes alone + each (n - 1) + turns (1 - 1/n), and arithmetic / n with a fixed batch.
    each, turns = 2 * cost.latency, passes
    if way is central:
        each, turns = each + passes, 0.0
    if global_batch is not None:
        saved = max(cost.arithmetic * batch - turns, 0.0)
        if saved and not each:
            all_of_it = way(workload, cost, 1, batch).total
            most = all_of_it / (all_of_it - saved) if all_of_it > saved else math.inf
            return Knee(math.inf, most, most)
        near = math.sqrt(saved / each) if saved else 1.0
        gains = {
            n: speedup(way, workload, cost, n, global_batch=batch)
            for n in (max(1, math.floor(near)), math.ceil(near))
        }
        best = max(gains, key=gains.__getitem__)
        return Knee(best, gains[best], gains[best])
    each += cost.input * batch
    alone = way(workload, cost, 1, batch).total
    if not each:
        return Knee(math.inf, math.inf, math.inf)
    # Half of alone / each: each n² + (each - alone - turns) n + turns = 0.
    half = (alone + turns - each) / (2 * each)
    inside = half**2 - turns / each
    devices = max(1.0, half + math.sqrt(inside)) if inside >= 0 else 1.0
    taken = alone + each * (devices - 1) + turns * (1 - 1 / devices)
    return Knee(devices, devices * alone / taken, max(1.0, alone / each))
