"""The sketches of lesson 00."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mgpu_helpers.charts.base import colour
from mgpu_helpers.lessons.sketches.base import box, canvas, label


def shared_product(devices: Sequence[str]) -> Any:
    """Sketch a product of two matrices, the rows of the left one shared out over the devices."""
    n = len(devices)
    ax, side = canvas(8, 2.1), 1.5
    rows = [(0.35 + i * side / n, side / n) for i in range(n)]
    label(ax, (1.0, 0.17), "left, in shards of rows")
    label(ax, (3.4, 0.17), "right, whole")
    label(ax, (6.4, 0.17), "the product, joined again")
    for device, (top, high) in zip(devices, rows, strict=True):
        box(ax, (0.25, top), (side, high), device if n < 7 else "", colour(device))
        box(ax, (5.65, top), (side, high), f"by {device}" if n < 7 else "", colour(device))
    box(ax, (2.65, 0.35), (side, side))
    label(ax, (2.2, 1.1), "×", size=20)
    label(ax, (4.9, 1.1), "=", size=20)
    return ax
