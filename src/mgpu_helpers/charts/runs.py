"""When whole trainings ran: jobs on their devices, models side by side."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from mgpu_helpers._formatting import counted
from mgpu_helpers.charts.base import DARK, axes, colour, label, rows, sizes

if TYPE_CHECKING:
    from mgpu_helpers.jobs import Job, Report


def jobs(report: Report, ax: Any = None) -> Any:
    """Draw which job ran where and when, a row for each device and in it a lane for each slot.

    A job with several devices has a bar in each of their rows. What did not end well is hatched
    and says its status. A name that finds no room above its bar is left out.

    >>> import sys
    >>> from mgpu_helpers.jobs import run
    >>> report = run([[sys.executable, "-c", f"print({i})"] for i in range(3)], progress=False)
    >>> ax = jobs(report)
    """
    drawn = [job for job in report.jobs if job.start is not None]
    # Who did not end well gets room for its name first.
    drawn.sort(key=lambda job: job.status == "done")
    lanes = sorted({(job.kind, n, job.slot) for job in drawn for n in job.devices})
    devices = sorted({lane[:2] for lane in lanes})
    places = {lane: i + 0.25 * devices.index(lane[:2]) for i, lane in enumerate(lanes)}
    length = max(report.wall, *(job.end or 0 for job in drawn), 0) or 1
    ax = axes(ax, size=(8, 1.2 + 0.5 * len(lanes) + 0.12 * len(devices)))
    middles = [np.mean([y for lane, y in places.items() if lane[:2] == d]) for d in devices]
    ax.set_yticks(np.add(middles, 0.65), [f"{kind} {number}" for kind, number in devices])
    ax.set_xlim(0, length)
    ax.set_ylim(max(places.values(), default=0) + 1.1, 0)
    others = Counter(job.status for job in report.jobs if job.start is None)
    left_out = "".join(f"; {counted(n, 'job')} {status}" for status, n in others.items())
    label(ax, f"Which job ran where{left_out}", "time, s")
    wide = sizes(ax, map(_name, drawn), 8)
    taken: dict[float, list[tuple[float, float]]] = defaultdict(list)
    for job in drawn:
        name, good, start = _name(job), job.status == "done", job.start or 0.0
        ran = (length if job.end is None else job.end) - start
        left = max(0.0, min(start, length - wide[name][0]))
        right = left + wide[name][0]
        for row in (devices.index((job.kind, number)) for number in job.devices):
            top, shade = places[*devices[row], job.slot], colour(f"/CPU:{row + 1}")
            ax.broken_barh(
                [(start, ran)], (top + 0.4, 0.56), facecolor=shade if good else "white",
                edgecolor="white" if good else shade, linewidth=0.6, hatch="" if good else "////",
            )  # fmt: skip
            if not any(left < b and a < right for a, b in taken[top]):
                ax.text(left, top + 0.2, name, size=8, va="center", color=DARK, clip_on=True)
                taken[top].append((left, right))
    return ax


def _name(job: Job) -> str:
    """Write a job's name, not too long, and how it ended if not well."""
    name = job.name if len(job.name) <= 30 else job.name[:29] + "…"
    return name if job.status == "done" else f"{name}: {job.status}"


def spans(
    spans: Mapping[str, Sequence[tuple[float, float]]], devices: Mapping[str, str], ax: Any = None
) -> Any:
    """Draw when each model trained: a row each, a bar for each step, in its device's colour.

    >>> steps = {"small": [(0.0, 0.2), (0.3, 0.5)], "large": [(0.0, 0.5)]}
    >>> ax = spans(steps, {"small": "/CPU:1", "large": "/CPU:2"})
    """
    ax = axes(ax, size=(8, 1.0 + 0.42 * len(spans)))
    for row, (name, steps) in enumerate(spans.items()):
        bars = [(start, end - start) for start, end in steps]
        ax.broken_barh(bars, (row - 0.35, 0.7), facecolor=colour(devices[name]),
                       edgecolor="white", linewidth=0.6)  # fmt: skip
    rows(ax, [f"{name} on {devices[name]}" for name in spans])
    ax.set_xlim(left=0)
    return label(ax, "When each model trained", "time, s")
