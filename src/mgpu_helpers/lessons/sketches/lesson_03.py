"""The sketches of lesson 03."""

from __future__ import annotations

from typing import Any

from mgpu_helpers.charts.memory import PARTS
from mgpu_helpers.lessons.sketches.base import arrow, box, canvas, label

KEPT, GRADIENT = PARTS["activations"], PARTS["gradients"]
_HIGH = {"1": 0.62, "2": 0.38, "3": 0.22}  # inches; the first layers' outputs are the largest


def stack() -> Any:
    """Sketch what a step of three layers holds: a stack that grows forward and shrinks back."""
    ax, wide, ground = canvas(8, 3.1), 0.95, 2.35
    moments = [
        ("layer 1", ["1"], []),
        ("layer 2", ["1", "2"], []),
        ("layer 3", ["1", "2", "3"], []),
        ("layer 3", ["1", "2", "3"], ["3", "2"]),
        ("layer 2", ["1", "2"], ["2", "1"]),
        ("layer 1", ["1"], ["1"]),
    ]
    for i, (name, outputs, gradients) in enumerate(moments):
        x, top = 0.25 + 1.2 * i + (0.25 if i > 2 else 0), ground
        rows = [(f"output {n}", n, KEPT) for n in outputs]
        rows += [(f"gradient {n}", n, GRADIENT) for n in gradients]
        for text, n, fill in rows:
            top -= _HIGH[n]
            box(ax, (x, top), (wide, _HIGH[n]), fill=fill)
            label(ax, (x + wide / 2, top + _HIGH[n] / 2), text, size=8.5)
        label(ax, (x + wide / 2, ground + 0.16), name)
        if i == 4:
            label(ax, (x + wide / 2, top - 0.14), "the peak", weight="bold")
    arrow(ax, (0.25, ground + 0.6), (3.6, ground + 0.6), "forward pass")
    arrow(ax, (4.1, ground + 0.6), (7.45, ground + 0.6), "backward pass")
    return ax
