"""The sketches of lesson 12."""

from __future__ import annotations

from typing import Any

from mgpu_helpers.charts.scaling import COSTS
from mgpu_helpers.lessons.sketches.base import arrow, box, canvas, label
from mgpu_helpers.wording import counted


def parts() -> Any:
    """Sketch the parts of a step on 1, 2 and 4 devices, each with the same per-device batch."""
    ax, left = canvas(8, 2.0), 1.1
    for i, n in enumerate((1, 2, 4)):
        top, at = 0.15 + 0.45 * i, left
        label(ax, (left - 0.15, top + 0.17), counted(n, "device"), ha="right")
        moving = 0.42 * 2 * (n - 1)
        for part, long in (("arithmetic", 2.2), ("fixed", 0.9), ("moving", moving)):
            if long:
                box(ax, (at, top), (long, 0.34), part, COSTS[part])
            at += long
    arrow(ax, (left, 1.65), (7.6, 1.65))
    label(ax, (left, 1.9), "time of a step, with the same batch on each device", ha="left", size=9)
    return ax
