"""The sketch of lesson 14."""

from __future__ import annotations

from typing import Any

from mgpu_helpers.charts.base import colour
from mgpu_helpers.lessons.sketches.base import arrow, box, canvas, label

SCALE, LEFT = 0.42, 1.1  # inches a second, and where second 0 is


def five_operations(first: str, second: str) -> Any:
    """Sketch five operations on two devices: when each runs, and whose result it needs."""
    ax = canvas(7.9, 2.4)
    rows, shades = {first: 0.3, second: 1.25}, {first: colour("/CPU:1"), second: colour("/CPU:2")}
    for device, y in rows.items():
        label(ax, (0.5, y + 0.25), device, weight="bold")
    for name, device, start, length in (
        ("a", first, 0, 4), ("b", second, 4, 6), ("c", first, 4, 2), ("d", first, 10, 3),
        ("e", second, 13, 2),
    ):  # fmt: skip
        at = (LEFT + SCALE * start, rows[device])
        box(ax, at, (SCALE * length, 0.5), f"{name}: {length} s", shades[device])
    down, up = rows[first] + 0.52, rows[second] - 0.02
    for second_of, below, above in ((4, down, up), (10, up, down), (13, down, up)):
        x = LEFT + SCALE * second_of
        arrow(ax, (x - 0.12, below), (x + 0.12, above))
    for moment in (0, 4, 10, 13, 15):
        x = LEFT + SCALE * moment
        ax.plot([x, x], [1.85, 1.93], color="#777777", linewidth=0.8)
        label(ax, (x, 2.08), str(moment), size=8.5)
    label(ax, (LEFT + SCALE * 15 + 0.3, 2.08), "s", size=8.5)
    return ax
