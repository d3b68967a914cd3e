"""The sketches of lesson 04."""

from __future__ import annotations

from typing import Any

from mgpu_helpers.charts.base import HOST, colour
from mgpu_helpers.lessons.sketches.base import arrow, box, canvas, label

IDLE = "#b8b8b8"


def landing() -> Any:
    """Sketch where two scripts work on a machine with four GPUs: told nothing, and told."""
    ax = canvas(8, 2.0)
    for left, head, targets in (
        (0.1, "nothing said", (0, 0)),
        (4.3, "a GPU for each", (0, 1)),
    ):
        label(ax, (left + 1.8, 0.15), head, weight="bold")
        for i in range(4):
            fill = colour(f"/GPU:{i}") if i in targets else IDLE
            box(ax, (left + 0.92 * i, 1.35), (0.86, 0.45), f"GPU {i}", fill)
        for i, (script, target) in enumerate(zip("ab", targets, strict=True)):
            x = left + 0.43 + 0.92 * i
            box(ax, (x - 0.36, 0.42), (0.72, 0.36), f"{script}.py", HOST)
            end = left + 0.43 + 0.92 * target + (0.15 * i if targets == (0, 0) else 0)
            arrow(ax, (x, 0.8), (end, 1.33))
    return ax


def numbers() -> Any:
    """Sketch the numbers that four GPUs have outside a process, and inside one that sees two."""
    ax = canvas(8, 1.9)
    label(ax, (1.75, 0.4), "outside, for nvidia-smi", ha="right")
    label(ax, (1.75, 1.5), "inside, for TensorFlow", ha="right")
    inside = {2: 0, 0: 1}
    for i in range(4):
        fill = colour(f"/GPU:{i}") if i in inside else IDLE
        box(ax, (2.2 + 1.45 * i, 0.2), (1.2, 0.4), f"GPU {i}", fill)
    for number, place in inside.items():
        box(ax, (2.2 + 1.45 * place, 1.3), (1.2, 0.4), f"/GPU:{place}", colour(f"/GPU:{number}"))
        arrow(ax, (2.8 + 1.45 * number, 0.62), (2.8 + 1.45 * place, 1.28))
    label(ax, (6.55, 1.5), "CUDA_VISIBLE_DEVICES=2,0", family="monospace", size=9)
    return ax


def race() -> Any:
    """Sketch two runners that look before either of them takes a device."""
    ax = canvas(8, 1.55)
    for row, (runner, looks, takes) in enumerate((("runner A", 1.2, 4.2), ("runner B", 2.4, 5.6))):
        y = 0.12 + 0.5 * row
        label(ax, (0.95, y + 0.19), runner, ha="right")
        ax.plot([1.2, 7.8], [y + 0.19] * 2, color="#bbbbbb", linewidth=1, zorder=0)
        box(ax, (looks, y), (1.5, 0.38), "looks: 0 is free", HOST)
        box(ax, (takes, y), (0.9, 0.38), "takes 0", colour("/GPU:0"))
    arrow(ax, (1.2, 1.2), (7.8, 1.2))
    label(ax, (7.8, 1.38), "time", ha="right")
    return ax
