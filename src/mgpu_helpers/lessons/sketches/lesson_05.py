"""The sketches of lesson 05."""

from __future__ import annotations

from typing import Any

from mgpu_helpers.charts.base import colour
from mgpu_helpers.lessons.sketches.base import arrow, box, canvas, label

IDLE = "#b8b8b8"


def turns(first: str, second: str) -> Any:
    """Sketch two models, each with a device of its own, in turn and at once."""
    ax = canvas(8, 1.75)
    small, large, left = 1.15, 1.55, 0.85  # inches
    for i, device in enumerate((first, second)):
        label(ax, (0.7, 0.55 + 0.5 * i), device, ha="right")
    for x, head in ((left, "in turn"), (left + 4.0, "at once")):
        label(ax, (x, 0.15), head, weight="bold", ha="left")
        wait = small if head == "in turn" else 0.0
        box(ax, (x, 0.35), (small, 0.4), "small", colour(first))
        box(ax, (x + wait, 0.85), (large, 0.4), "large", colour(second))
        if wait:
            box(ax, (x, 0.85), (small, 0.4), "idle", IDLE)
            box(ax, (x + small, 0.35), (large, 0.4), "idle", IDLE)
        arrow(ax, (x, 1.42), (x + 2.9, 1.42))
        label(ax, (x + 2.9, 1.6), "time", ha="right")
    return ax
