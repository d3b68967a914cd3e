"""The sketches of lesson 10."""

from __future__ import annotations

from typing import Any

from mgpu_helpers import pipeline
from mgpu_helpers.charts.base import colour, pale
from mgpu_helpers.lessons import schedules
from mgpu_helpers.lessons.sketches.base import box, canvas, label


def bubble(first: str, second: str, pieces: int = 4) -> Any:
    """Sketch a step of two stages in one piece, and in several: the waiting is left empty."""
    ax, wide, high = canvas(8, 3.1), 6.2, 0.4
    length = 4.0  # of a step in one piece, in tasks of the whole batch
    for top, m, title in ((0.35, 1, "in one piece"), (1.85, pieces, f"in {pieces} pieces")):
        label(ax, (1.5, top - 0.18), title, ha="left", weight="bold")
        schedule = pipeline.one_forward_one_backward(2, m)
        for (stage, task), (start, end) in schedules.run_times(schedule).items():
            device = (first, second)[stage]
            unit = wide / length / m
            fill = colour(device) if task[0] == "F" else pale(colour(device))
            at = (1.5 + start * unit, top + 0.48 * stage)
            box(ax, at, ((end - start) * unit, high), task, fill)
        for stage, device in enumerate((first, second)):
            label(ax, (1.35, top + 0.48 * stage + high / 2), f"stage {stage}, {device}", ha="right",
                  size=8.5)  # fmt: skip
    label(ax, (1.5, 2.98), "time →", ha="left", size=8.5)
    return ax
