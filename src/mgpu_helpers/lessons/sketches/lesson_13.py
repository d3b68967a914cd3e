"""The sketches of lesson 13."""

from __future__ import annotations

from typing import Any

from mgpu_helpers.charts.base import HOST, colour
from mgpu_helpers.lessons.sketches.base import arrow, box, canvas, label


def two_machines() -> Any:
    """Sketch two machines that train one network: a worker on each, which drives all its GPUs."""
    ax = canvas(8, 1.95)
    for i, left in enumerate((0.2, 4.9)):
        label(ax, (left + 1.45, 0.15), f"machine {'ab'[i]}", weight="bold")
        box(ax, (left, 0.4), (2.9, 0.5), f"worker {i}", HOST)
        for gpu in range(2):
            fill = colour(f"/GPU:{gpu}")
            box(ax, (left + 1.5 * gpu, 1.0), (1.4, 0.42), f"GPU {gpu}", fill)
        label(ax, (left + 1.45, 1.7), f"TF_CONFIG: a:20000, b:20000; I am {i}", size=8.5)
    arrow(ax, (3.15, 0.58), (4.85, 0.58))
    arrow(ax, (4.85, 0.74), (3.15, 0.74))
    label(ax, (4.0, 0.4), "gradients", size=8.5)
    return ax


def restart() -> Any:
    """Sketch what a launcher does when a worker dies: it ends all, and starts all again."""
    ax = canvas(8, 1.75)
    rows = (0.25, 0.85)
    for i, y in enumerate(rows):
        mine = colour(f"/GPU:{i}")
        label(ax, (0.95, y + 0.19), f"worker {i}", ha="right")
        for left, width, text in (
            (1.1, 1.45, "steps 0 to 4"), (2.65, 0.5, "5, 6"),
            (4.75, 0.5, "5, 6"), (5.3, 2.4, "7 to the end"),
        ):  # fmt: skip
            box(ax, (left, y), (width, 0.38), text, mine)
    box(ax, (3.2, rows[0]), (1.1, 0.38), "waits, ends", HOST)
    label(ax, (3.5, rows[1] + 0.19), "killed", size=9, weight="bold")
    for x, text in ((2.6, "checkpoint"), (4.55, "restart")):
        ax.plot([x, x], [0.12, 1.33], color="#555555", linewidth=1, linestyle=":", zorder=0)
        label(ax, (x, 1.43), text, size=8.5)
    arrow(ax, (1.1, 1.6), (7.8, 1.6))
    label(ax, (7.8, 1.45), "time", ha="right")
    return ax
