"""Ask a cost about more devices: speed-up, efficiency, and where it stops paying."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from mgpu_helpers.scaling.model import (
    BATCH,
    DEVICES,
    Breakdown,
    Cost,
    Link,
    Workload,
    central,
    positive,
    ring,
)
from mgpu_helpers.wording import whole_number

Way = Callable[..., Breakdown]


def speedup(
    way: Way,
    workload: Workload,
    cost: Cost,
    n: int,
    *,
    per_device_batch: float | None = None,
    global_batch: float | None = None,
    link: Link | None = None,
) -> float:
    """Give how many times as many examples a second n devices train as one.

    Either each device keeps its batch (weak scaling), or n devices share one (strong scaling).
    """
    batch = _one_of(per_device_batch, global_batch)
    whole_number("n", n, DEVICES, 1)
    share = batch if global_batch is None else batch / n
    alone = way(workload, cost, 1, batch, link).total
    together = way(workload, cost, n, share, link).total
    return alone / together * n * share / batch


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
    """
    counts = tuple(counts)
    links = [link] * 3
    if link:
        links = [replace(link, bandwidth=b) for b in (link.bandwidth, link.low, link.high)]
    batch = {"per_device_batch": per_device_batch, "global_batch": global_batch}
    return Curve(counts, *(
        tuple(speedup(way, workload, cost, n, link=each, **batch) / n for n in counts)
        for each in links
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
    """
    batch = _one_of(per_device_batch, global_batch)
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


@dataclass(frozen=True)
class Verdict:
    """Whether a published time is possible; share is that of the peak, 0 to 1 if it is."""

    ok: bool
    share: float
    sentence: str

    def __repr__(self) -> str:
        return self.sentence


def feasible(workload: Workload, examples: float, seconds: float, peak_flops: float) -> Verdict:
    """Compare the FLOP of training so many examples in so many seconds with a device's peak."""
    positive("examples", examples, "a number of examples")
    positive("seconds", seconds, "a time")
    positive("peak_flops", peak_flops, "a peak in FLOP/s")
    speed = workload.flops * examples / seconds
    share = speed / peak_flops
    sentence = (
        f"{workload.flops / 1e6:.1f} MFLOP x {examples:,.0f} examples in {seconds:.2f} s are "
        f"{speed / 1e12:.3g} TFLOP/s, "
    )
    if share > 1:
        sentence += f"{share:.1f} times the peak of {peak_flops / 1e12:.3g}: impossible"
    else:
        sentence += f"{share:.0%} of the peak of {peak_flops / 1e12:.3g}: possible"
    return Verdict(share <= 1, share, sentence)


def _one_of(per_device_batch: float | None, global_batch: float | None) -> float:
    if (per_device_batch is None) == (global_batch is None):
        raise ValueError(
            f"per_device_batch={per_device_batch} and global_batch={global_batch}: give one of "
            "them, the one that stays the same on any number of devices."
        )
    batch = per_device_batch if global_batch is None else global_batch
    positive("batch", batch, BATCH)
    return batch
