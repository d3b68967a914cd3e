"""The sketches of lesson 01."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mgpu_helpers.charts.base import colour
from mgpu_helpers.lessons.sketches.base import arrow, box, canvas, label


def asked_planned_ran(devices: Sequence[str], elsewhere: str) -> Any:
    """Sketch where three operations were asked for, were planned, and ran.

    `elsewhere` is where a wrong name ends.
    """
    first, last = devices[0], devices[-1]
    rows = [
        ("a right name", first, first, first),
        ("a wrong name", "/GPU:9", elsewhere, elsewhere),
        ("nothing but constants", last, last, "does not run"),
    ]
    real = {*devices, elsewhere}
    ax, columns = canvas(8, 2.3), [3.0, 5.0, 7.0]
    heads = [("asked for", "tf.device"), ("planned", "placement log"), ("ran", "trace")]
    for x, (stage, where) in zip(columns, heads, strict=True):
        label(ax, (x, 0.17), stage, weight="bold")
        label(ax, (x, 0.42), where, size=8.5, color="#777777")
    for i, (what, *places) in enumerate(rows):
        y = 0.9 + 0.55 * i
        label(ax, (0.1, y), what, ha="left")
        for x, place in zip(columns, places, strict=True):
            if place in real:
                box(ax, (x - 0.55, y - 0.2), (1.1, 0.4), place, colour(place))
            else:
                label(ax, (x, y), place, style="italic")
            if x > columns[0]:
                arrow(ax, (x - 1.4, y), (x - 0.6, y))
    return ax
