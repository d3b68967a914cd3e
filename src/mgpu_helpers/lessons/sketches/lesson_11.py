"""The sketches of lesson 11."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mgpu_helpers.charts.base import HOST, colour
from mgpu_helpers.lessons.sketches.base import arrow, box, canvas, label

WHOLE = 1.8  # inches that one device computes for


def two_ways(devices: Sequence[str]) -> Any:
    """Sketch a step on one device, in strong and in weak scaling; grey: gradients are averaged."""
    n = len(devices)
    high = min(0.3, 1.2 / n)
    ax = canvas(8, 1.05 + n * high)
    for left, name, words in (
        (0.2, "one device", "one batch"),
        (2.75, "strong scaling", "the same batch, shared"),
        (5.3, "weak scaling", "a batch for each"),
    ):
        label(ax, (left, 0.17), name, ha="left", weight="bold")
        label(ax, (left, 0.42), words, ha="left", size=8.5)
        shown = devices[:1] if left < 1 else devices
        long = WHOLE / n if 1 < left < 5 else WHOLE
        for i, device in enumerate(shown):
            box(ax, (left, 0.6 + i * high), (long, high), "", colour(device))
        if len(shown) > 1:
            box(ax, (left + long, 0.6), (0.18, n * high), "", HOST)
        arrow(ax, (left, 0.72 + n * high), (left + 2.2, 0.72 + n * high))
        label(ax, (left, 0.9 + n * high), "time of a step", ha="left", size=8.5)
    return ax
