"""The sketches of lesson 06."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mgpu_helpers.charts.base import HOST, colour
from mgpu_helpers.lessons.sketches.base import arrow, box, canvas, label


def shards(devices: Sequence[str]) -> Any:
    """Sketch a batch cut into shards, each taken through the function on its device, and joined."""
    n = len(devices)
    row = max(0.4, 1.2 / n)
    ax = canvas(8, 0.75 + n * row)
    for x, text in ((0.95, "the batch"), (3.95, "the function"), (6.95, "the results, joined")):
        label(ax, (x, 0.17), text)
    for i, device in enumerate(devices):
        top = 0.4 + i * row
        middle = top + row / 2
        box(ax, (0.45, top), (1.0, row), f"shard {i}", colour(device))
        arrow(ax, (1.55, middle), (3.0, middle))
        box(ax, (3.05, top + 0.05), (1.8, row - 0.1), f"on {device}", colour(device))
        arrow(ax, (4.9, middle), (6.35, middle))
        box(ax, (6.45, top), (1.0, row), f"result {i}", colour(device))
    for x in (0.95, 6.95):
        label(ax, (x, 0.55 + n * row), "on the host", color=HOST, weight="bold")
    return ax


def backward(devices: Sequence[str]) -> Any:
    """Sketch two places of the backward pass: the host for all shards, or each shard's device."""
    n, row = len(devices), 0.42
    ax = canvas(8, 0.75 + n * row)
    label(ax, (1.95, 0.17), "the host asks for one gradient")
    label(ax, (6.05, 0.17), "each device asks for its own")
    for left in (0.3, 4.25):
        for i, device in enumerate(devices):
            box(ax, (left, 0.4 + i * row), (1.15, row), "forward", colour(device))
    for i, device in enumerate(devices):
        y = 0.4 + (i + 0.5) * row
        arrow(ax, (1.5, y), (2.1, y))
        arrow(ax, (5.45, y), (5.75, y))
        box(ax, (5.8, 0.4 + i * row), (1.0, row), "backward", colour(device))
        arrow(ax, (6.85, y), (7.1, y))
    box(ax, (2.15, 0.4), (1.15, n * row), "backward")
    box(ax, (7.15, 0.4), (0.75, n * row), "mean")
    label(ax, (0.3, 0.56 + n * row), "grey: the host", ha="left", color=HOST, weight="bold")
    return ax
