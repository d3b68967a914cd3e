"""The sketches of lesson 09."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mgpu_helpers.charts.base import colour
from mgpu_helpers.lessons.sketches.base import arrow, box, canvas, label


def cut_network(first: str, second: str, front: Sequence[str], rear: Sequence[str]) -> Any:
    """Sketch a network cut in two: what goes from layer to layer, and what crosses the cut."""
    ax, wide, gap = canvas(8, 2.2), 0.85, 0.28
    label(ax, (0.22, 1.15), "batch")
    x = 0.78
    for part, device, names in [("front", first, front), ("rear", second, rear)]:
        label(ax, (x + (len(names) * (wide + gap) - gap) / 2, 0.25), f"{part} on {device}",
              weight="bold")  # fmt: skip
        for name in names:
            if name != rear[0]:
                arrow(ax, (x - gap - 0.03, 1.15), (x + 0.05, 1.15))
            box(ax, (x, 0.6), (wide, 1.1), name, colour(device))
            x += wide + gap
        if part == "front":
            border = x - gap
            x += 0.85
    arrow(ax, (border + 0.05, 0.95), (border + gap + 0.8, 0.95), "activations")
    arrow(ax, (border + gap + 0.8, 1.35), (border + 0.05, 1.35))
    label(ax, ((2 * border + gap + 0.85) / 2, 1.53), "their gradient", size=8.5)
    middle = border + (gap + 0.85) / 2
    ax.plot([middle, middle], [0.1, 2.1], color="#999999", linestyle=":", linewidth=1.2, zorder=0)
    arrow(ax, (x - gap - 0.03, 1.15), (x + 0.05, 1.15))
    label(ax, (x + 0.25, 1.15), "loss")
    return ax
