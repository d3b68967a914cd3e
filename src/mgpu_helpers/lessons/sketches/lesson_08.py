"""The sketch of lesson 08."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mgpu_helpers.charts.base import HOST, PALETTE
from mgpu_helpers.lessons.sketches.base import arrow, box, canvas, label


def replicas(devices: Sequence[str]) -> Any:
    """Sketch a step of replicas: shards of a batch, weights of their own, one all-reduce."""
    shown = list(devices[:4])
    high = 0.35 + 0.85 * len(shown)
    ax = canvas(8, high)
    for at, text in ((0.9, "the global batch"), (3.3, "replicas"), (7.1, "a copy on each device")):
        label(ax, (at, 0.12), text)
    for i, device in enumerate(shown):
        top = 0.32 + 0.85 * i
        middle = top + 0.32
        box(ax, (0.3, top), (1.2, 0.65), f"shard {i}", HOST)
        box(ax, (2.3, top), (2.0, 0.65), f"{device}\nforward, backward", PALETTE[i])
        box(ax, (6.6, top), (1.0, 0.65), "weights", PALETTE[i])
        arrow(ax, (1.55, middle), (2.25, middle))
        arrow(ax, (4.35, middle), (5.0, middle))
        arrow(ax, (5.95, middle), (6.55, middle))
    box(ax, (5.05, 0.32), (0.85, high - 0.52), "add up\nall\ngradients", "#444444")
    return ax
