"""A schedule of a pipeline in time, checked and as a table: for lesson 13."""

from __future__ import annotations

from collections.abc import Sequence

from mgpu_helpers.pipeline.schedule import run_times

__all__ = ["check", "run_times", "table"]


def check(schedule: Sequence[Sequence[str]]) -> int:
    """Check that an order can run; give the number of its pieces. ValueError names a wrong task."""
    return len(run_times(schedule)) // (2 * len(schedule) or 1)


def table(schedule: Sequence[Sequence[str]]) -> str:
    """Write a schedule as a table: a line for each stage, a column for each unit of time."""
    spans = run_times(schedule)
    columns = round(max(end for _, end in spans.values()))
    cells = [["."] * columns for _ in schedule]
    for (stage, task), (start, _) in spans.items():
        cells[stage][round(start)] = task
    wide = max(len(task) for tasks in schedule for task in tasks)
    return "\n".join(
        f"stage {s}: " + " ".join(f"{cell:{wide}}" for cell in row).rstrip()
        for s, row in enumerate(cells)
    )
